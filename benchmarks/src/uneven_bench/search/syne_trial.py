"""A trivial trial for Syne Tune, which starts this file as a program."""

import sys

if __name__ == "__main__":
    from syne_tune import Reporter

    Reporter()(score=float(sys.argv[sys.argv.index("--x") + 1]))
