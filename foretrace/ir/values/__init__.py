"""Values, what is known of each, and the nested structures that ops take and return."""
