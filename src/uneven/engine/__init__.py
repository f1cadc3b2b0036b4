"""What a session is made of: the fast loop, the slow loop, the start of a run and its scribe."""
