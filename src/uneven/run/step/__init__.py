"""One training step: the loop, the parts that take part in it, and how a session builds them."""
