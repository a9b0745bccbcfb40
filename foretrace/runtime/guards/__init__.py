"""Guards: one list of conditions on later calls, as a fast path or as reasons."""
