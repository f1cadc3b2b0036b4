"""The made-up runs of the journal's tests serve here too."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
