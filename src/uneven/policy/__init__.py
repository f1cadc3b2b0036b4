"""Decisions: who computes how much, who agrees with whom and when, what is merged and sent."""
