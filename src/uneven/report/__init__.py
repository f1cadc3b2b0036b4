"""Faces of the journal: terminal, HTML, Perfetto, TensorBoard. Each reads a run directory, nothing else."""
