"""foretrace's own entry points: capture, Program, Cut and rule."""
