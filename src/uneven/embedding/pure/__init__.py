"""Decisions of tables and their servers: rows, routes, sharding, messages."""
