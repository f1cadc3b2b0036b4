"""Preconditioners: parts that turn gradients between their exchange and the optimizer's step.

Who works for which weight (``place``), when (``schedule``), and how it travels (``pack``, ``carrier``) is the same for
all of them; ``kfac`` and ``soap`` say what is kept, what comes of it, and how a gradient is turned.
"""
