"""Ops, values and their types; recordings and graphs; the verifier."""
