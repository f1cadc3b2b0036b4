"""Gradients: averaged by samples while the backward pass runs, with what is piggybacked on them."""
