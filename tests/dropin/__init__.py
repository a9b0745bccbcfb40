"""In the place of torch's tools, and beside them."""
