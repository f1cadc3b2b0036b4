"""Which settings are worth training."""
