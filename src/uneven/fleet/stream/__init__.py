"""The shared stream of samples: prepared once, in memory that all members read."""
