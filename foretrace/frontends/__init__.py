"""What users call: capture, torch's entry points, commands."""
