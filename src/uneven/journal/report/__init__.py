"""The views of the journal: terminal, HTML, Perfetto, TensorBoard. Each only reads a run directory."""
