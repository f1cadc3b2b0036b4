"""How a session starts: settings, the way to the others, what a checkpoint holds, memory."""
