"""What is known of values while a program is recorded: constants, and what the example has."""
