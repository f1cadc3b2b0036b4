"""Described clusters: files, simulation, virtual training, plans and emulation."""
