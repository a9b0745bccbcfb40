"""One call of the running program becomes an op."""
