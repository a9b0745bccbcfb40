"""Recordings with numbers in place of open sizes."""
