"""Train one member: its workers, its epochs and its checkpoints."""
