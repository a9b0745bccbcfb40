"""Values, ops, the recorded program, and graphs cut from it."""
