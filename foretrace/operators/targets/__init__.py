"""What a device decides: profiles, and choices with their reasons."""
