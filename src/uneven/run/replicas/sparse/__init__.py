"""Exchanges of picked entries between distant workers: ordered, encrypted messages, and their merge."""
