"""Compilers of other projects: what each gets of a graph, and how it is called."""
