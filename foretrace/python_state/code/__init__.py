"""What bytecode names."""
