"""Programs and whole runs as forks of a process that has imported torch, for benches and tests."""
