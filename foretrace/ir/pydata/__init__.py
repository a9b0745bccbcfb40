"""Python's containers and objects, as far as a recording speaks of them."""
