"""The command ``python -m uneven``, equal to ``uneven``."""

from uneven.cli import main

main()
