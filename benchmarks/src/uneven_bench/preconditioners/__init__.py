"""``uneven bench preconditioners``: what second order costs in a step, on the line and in memory, and where it pays."""
