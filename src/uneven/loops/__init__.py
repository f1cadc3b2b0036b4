"""What the loops that people write need beside a step: losses that are no mean over samples, means over all workers."""
