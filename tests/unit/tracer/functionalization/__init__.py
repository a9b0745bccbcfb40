"""Small programs and what becomes of writes, made values."""
