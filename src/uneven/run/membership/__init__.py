"""Elastic runs: workers leave and join while the others continue."""
