"""Small programs and what becomes of one run."""
