"""Two cuts beside each other: aligned on the tree, each difference with its reason."""
