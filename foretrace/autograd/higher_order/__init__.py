"""Derivatives of operators that hold programs."""
