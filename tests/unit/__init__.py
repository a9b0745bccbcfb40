"""One room of the package each."""
