"""For people: explanations, differences, checks, the dispatcher."""
