"""What explanations are made of."""
