"""One call of a cut or of a compiled program."""
