"""Objects of a program as JSON, and back: nothing is looked up by a name that a file chooses."""
