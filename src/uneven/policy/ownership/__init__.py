"""Which worker refreshes which item of a preconditioner."""
