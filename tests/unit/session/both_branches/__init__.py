"""How two runs of one program become one record."""
