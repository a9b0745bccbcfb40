"""The walk back over recorded ops: every gradient as torch's engine computes it."""
