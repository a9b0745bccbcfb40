"""What a node, a program and a cut say of themselves."""
