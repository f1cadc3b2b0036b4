"""The assignment of a preconditioner's items to workers that refresh them."""
