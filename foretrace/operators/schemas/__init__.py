"""Facts about operators: schemas, dispatch results, exceptions that torch does not state."""
