"""Tools for those who work on foretrace."""
