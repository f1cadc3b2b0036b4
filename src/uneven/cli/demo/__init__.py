"""The demo: one training on four local workers of unequal speed, first with DDP, then with uneven."""
