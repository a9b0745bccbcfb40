"""What a run reads and changes outside of its arguments."""
