"""Who trains together, on which devices, and for how long. Imports nothing of the world."""
