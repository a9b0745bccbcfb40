"""From the record to graphs: flatten, write back, decompose."""
