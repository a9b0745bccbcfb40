"""Both sides of a question that data answers: each way is run, and all are one record."""
