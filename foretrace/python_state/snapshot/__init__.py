"""The heap as it was before a run, and how it is put back."""
