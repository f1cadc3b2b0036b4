"""One member of the ensemble: its workers, its epochs, and what is kept of it."""
