"""Picked entries between workers that are far apart: messages in order, encrypted, and what becomes of them."""
