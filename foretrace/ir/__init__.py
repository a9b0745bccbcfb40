"""Values, ops, the record of a program, graphs cut from it; and what checks them."""
