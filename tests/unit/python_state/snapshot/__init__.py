"""Small programs and what becomes of the Python state around a run."""
