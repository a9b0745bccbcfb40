"""Autograd's history in a forward cut, which trains as the program does."""
