"""One op: recorded, its outcome looked up or learned."""
