"""Writes and shared memory, functionalized while the program runs."""
