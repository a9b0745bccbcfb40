"""Abstract tensors: types without memory, indexing, autocast."""
