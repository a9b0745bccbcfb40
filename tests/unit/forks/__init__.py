"""A process that is forked while threads capture."""
