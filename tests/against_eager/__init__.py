"""Every cut and compiled callable beside eager."""
