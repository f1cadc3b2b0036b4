"""A run among workers: the moments of a step, the parts that take part in them, and the lines between workers.

``part`` says what a part of a step is, ``parts`` asks all of a session's in order, and ``lines`` is the door through
which they exchange.
"""
