"""Helpers that only the tests of this repository use."""
