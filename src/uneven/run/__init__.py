"""Runs among workers: the moments of a step, the parts in them, and the lines between workers.

``part`` defines the part of a step, ``parts`` calls all of a session's parts in order, and ``lines`` carries their
exchanges.
"""
