"""Calls: guards, compiled callables, backends, graph breaks."""
