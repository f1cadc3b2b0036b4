"""Where the time of a step goes, and how busy the machine is."""
