"""Backends: a record as eager code, or as graphs for compilers."""
