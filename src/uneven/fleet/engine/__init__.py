"""Carry out the plan: start members, feed them data and keep the state of the run."""
