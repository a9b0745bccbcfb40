"""Explanations of nodes: their paths in the tree."""
