"""What torch says of one operator: its schema, the types of its results. Records nothing."""
