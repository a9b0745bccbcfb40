"""What is captured around a hole: a program in pieces, with Python between them."""
