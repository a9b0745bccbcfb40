"""The types of an operator's results."""
