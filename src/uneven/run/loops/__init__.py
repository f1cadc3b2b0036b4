"""What the calls of a session do: before the loop, in a loop without a loader, and over all workers."""
