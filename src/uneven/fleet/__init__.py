"""Many unlike models trained at once, on shared data, each on the number of devices at which all keep pace."""
