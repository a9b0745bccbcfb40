"""From the record to graphs: cut, differentiate, open by a table."""
