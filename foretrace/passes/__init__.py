"""From the recorded tree to graphs: cut, differentiate, select."""
