"""The one run of the user's program, from its arguments to a record."""
