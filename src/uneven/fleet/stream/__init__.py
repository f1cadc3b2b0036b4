"""Share one stream of samples: prepared once, in memory that all members read."""
