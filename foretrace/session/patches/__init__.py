"""What is replaced around a run of the program: functions of torch, Python's collector."""
