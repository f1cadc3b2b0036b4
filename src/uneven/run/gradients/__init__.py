"""Exchange of gradients: averaged by samples during the backward pass, with a few numbers piggybacked on them."""
