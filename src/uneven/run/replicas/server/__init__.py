"""Asynchronous exchanges through the parameter server."""
