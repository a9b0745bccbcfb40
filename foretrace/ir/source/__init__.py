"""Where in the user's code: the line of an op, and the line behind a change of Python state."""
