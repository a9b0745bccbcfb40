"""A joint graph in two: what the forward saves and what the backward computes again."""
