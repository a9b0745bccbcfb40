"""What a call has to read and to leave behind."""
