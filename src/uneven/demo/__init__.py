"""``uneven demo``: the main job on four local workers of unequal speed, DDP first, then uneven."""
