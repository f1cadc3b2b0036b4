"""Where members run: processes and devices of this machine or of a Ray cluster, and their signs of life."""
