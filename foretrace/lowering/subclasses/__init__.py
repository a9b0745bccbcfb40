"""Graphs with tensor subclasses, opened to inner tensors."""
