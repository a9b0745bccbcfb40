"""What a program is."""
