"""This copy of uneven: its version, and where its files are."""

from pathlib import Path

VERSION = "0.1.0"

FOLDER = Path(__file__).parent
"""The package itself; what it lies in is a place to import it from."""
