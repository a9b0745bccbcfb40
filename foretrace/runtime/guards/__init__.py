"""What a later call has to be like: one list of conditions, read fast or as words."""
