"""Ops that write, called as operators in place where a graph is run."""
