"""Plans of an emulation: names, wiring, shapes, checks."""
