"""A trivial trial of Syne Tune's, which starts this file as a program for each."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from syne_tune import Reporter

    Reporter()(score=float(sys.argv[sys.argv.index("--x") + 1]))
