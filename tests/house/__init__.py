"""The rules of the source, and what the pages show."""
