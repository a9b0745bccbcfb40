"""A program's tree, its cuts and its tensors in a file, and back: no pickle, no code."""
