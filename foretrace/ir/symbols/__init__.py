"""Sizes that are not yet known, and what the program assumed of them."""
