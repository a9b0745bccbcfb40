"""Small programs and what becomes of one op, recorded."""
