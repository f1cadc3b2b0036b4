"""Plan which members train together, on which devices, and for how long. Free of I/O, clocks and processes."""
