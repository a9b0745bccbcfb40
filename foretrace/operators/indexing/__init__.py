"""Indexing of abstract tensors, as the operator calls of torch's binding."""
