"""What an op means: the types of its results, and its derivative."""
