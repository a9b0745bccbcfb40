"""What a program reads and changes of Python's state: watched, put back, noted for guards."""
