"""One training step: the loop, the callbacks in it, and how a session builds them."""
