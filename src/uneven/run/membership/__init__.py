"""Workers that leave and join while the others go on: who takes part, and what that means for a step."""
