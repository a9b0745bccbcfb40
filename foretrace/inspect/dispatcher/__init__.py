"""The dispatcher: how a call's key set resolves, and the kernels that a program runs."""
