"""Run the program once over abstract tensors, and keep what it did."""
