"""Decisions of the parameter server's shards and clients."""
