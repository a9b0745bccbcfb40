"""Derivatives of operators, and of programs."""
