"""What Python asks of the values of a run: yes or no, and numbers that it computes with."""
