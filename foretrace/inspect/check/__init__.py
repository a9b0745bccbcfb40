"""Eager compared with every cut, to the last bit."""
