"""Each kind of cut as a list of passes, and what runs them."""
