"""What torch and a target say of one operator."""
