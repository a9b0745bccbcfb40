"""Call a cut, check the call, and hold it against eager."""
