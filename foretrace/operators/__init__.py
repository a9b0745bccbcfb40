"""Facts about one operator, from torch and a target device."""
