"""Checks of the user's model, and hooks on it that a session removes at its end."""
