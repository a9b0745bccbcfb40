"""What passes make of small trees, which are text."""
