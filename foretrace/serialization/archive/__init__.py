"""Saves a program's tree, cuts and tensors to a file, and loads it: no pickle, no code."""
