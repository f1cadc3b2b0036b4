"""Plans of a fleet: devices, orders of samples, batch sizes."""
