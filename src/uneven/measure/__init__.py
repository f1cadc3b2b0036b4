"""Where a step's time goes, and what the machine is doing meanwhile."""
