"""``python -m uneven`` is ``uneven``."""

from uneven.cli import main

main()
