"""From a recording to graphs and their forms."""
