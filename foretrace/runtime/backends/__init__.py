"""What becomes of a record that is to be called: eager code, graphs for compilers."""
