"""Graphs with tensors that wrap others, taken down to what these hold."""
