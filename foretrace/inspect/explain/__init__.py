"""Why a node is in a graph, and what differs between graphs."""
