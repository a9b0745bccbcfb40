"""Forward-mode autograd while a program is recorded: what it asks of memory, and dual numbers."""
