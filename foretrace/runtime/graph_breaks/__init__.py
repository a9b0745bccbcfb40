"""Graph breaks: a program in pieces, with Python between them."""
