"""Python state of a program in a file: optimizers, objects, containers."""
