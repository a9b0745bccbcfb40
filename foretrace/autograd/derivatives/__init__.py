"""Derivatives: asked of the installed torch, one op at a time, or registered."""
