"""The parts that every bench has: its command's frame, its workers, its rounds, its figures and its tables."""
