"""Torch's own test files, run with foretrace in torch's place: see README.md."""
