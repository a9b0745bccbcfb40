"""One run of the user's Python becomes a recording."""
