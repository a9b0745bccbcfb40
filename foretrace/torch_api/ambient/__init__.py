"""What torch keeps beside tensors that can change what a program computes: one table."""
