"""What compares and counts."""
