"""Carries out the plan: starts members, passes the data to them, keeps the state of the run."""
