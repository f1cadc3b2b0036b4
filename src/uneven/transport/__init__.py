"""How things travel between workers. Policies decide, merges compute, transports carry."""
