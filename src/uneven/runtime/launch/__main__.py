"""Run the launcher in a separate process: ``python -m uneven.runtime.launch TASK``, TASK in JSON, see
``local.start``."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from uneven.errors import LaunchError, UnevenError
from uneven.runtime.launch.launch_spec import Launch
from uneven.runtime.launch.local_launch import run
from uneven.runtime.launch.output import WorkerOutput

_LOOK_EVERY_S = 0.2


def _end_with(parent: int) -> None:
    """Stop this launcher, workers first, when its parent process has ended."""
    # Not PR_SET_PDEATHSIG as in jobs/parent_death.py: that would kill this launcher before it could end its workers.
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY_S)
    os.kill(os.getpid(), signal.SIGTERM)


def _main(task: dict[str, Any]) -> int:
    fields = task["launch"] | {key: tuple(task["launch"][key]) for key in ("target", "shares")}
    fields["output"] = WorkerOutput(**fields["output"])
    directory = task["run_directory"]
    if "parent" in task:
        threading.Thread(target=_end_with, args=(task["parent"],), name="uneven-parent", daemon=True).start()
    try:
        run(Launch(**fields), run_directory=Path(directory) if directory else None)
    except UnevenError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, LaunchError) else 2
    return 0


if __name__ == "__main__":
    sys.exit(_main(json.loads(sys.argv[1])))
