"""Python's heap around a run."""
