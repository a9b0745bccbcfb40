"""Eager beside every cut, to the last bit."""
