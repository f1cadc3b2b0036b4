"""Preconditioners: callbacks that transform gradients between their exchange and the optimizer's step.

They share the assignment of work (``place``), its timing (``schedule``) and its exchange (``pack``, ``carrier``).
``kfac`` and ``soap`` define the statistics, their decomposition and the transformation.
"""
