"""Abstract tensors, which the program computes with: types without memory, indexing, autocast."""
