"""``uneven bench preconditioners``: the cost of second order in a step, on the line and in memory, and its gain."""
