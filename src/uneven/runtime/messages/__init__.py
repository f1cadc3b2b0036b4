"""Authenticated messages over ZeroMQ, and the processes that serve them."""
