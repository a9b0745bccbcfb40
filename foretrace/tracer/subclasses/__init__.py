"""Calls of tensor subclasses: their `__torch_dispatch__`, recorded."""
