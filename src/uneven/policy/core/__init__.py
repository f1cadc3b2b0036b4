"""Frozen plain data that all packages share: records, views, actions, costs.

Nothing here imports torch, starts a thread, opens a socket or reads a clock (``tests/test_architecture.py`` checks it).
"""
