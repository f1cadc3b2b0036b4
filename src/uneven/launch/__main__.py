"""The launcher in a process of its own: ``python -m uneven.launch TASK``, TASK in JSON, see ``local.start``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from uneven.errors import LaunchError, UnevenError
from uneven.launch.local import run
from uneven.launch.spec import Launch


def _main(task: dict[str, Any]) -> int:
    fields = task["launch"] | {key: tuple(task["launch"][key]) for key in ("target", "shares")}
    directory = task["run_directory"]
    try:
        run(Launch(**fields), run_directory=Path(directory) if directory else None)
    except UnevenError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, LaunchError) else 2
    return 0


if __name__ == "__main__":
    sys.exit(_main(json.loads(sys.argv[1])))
