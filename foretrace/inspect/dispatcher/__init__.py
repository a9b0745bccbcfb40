"""The dispatcher: how a call's key set resolves, and every kernel that a program runs."""
