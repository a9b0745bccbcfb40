"""Call a cut or a compiled callable, and write back what the program wrote."""
