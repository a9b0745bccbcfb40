"""Operators that hold programs, recorded."""
