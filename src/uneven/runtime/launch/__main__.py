"""Run the launcher in a separate process: ``python -m uneven.runtime.launch TASK``, TASK in JSON, see
``local_launch.start``."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

from uneven.errors import LaunchError, UnevenError
from uneven.runtime.jobs.parent_death import end_with_parent
from uneven.runtime.launch.launch_spec import Launch
from uneven.runtime.launch.local_launch import run
from uneven.runtime.launch.output import WorkerOutput


def _main(task: dict[str, Any]) -> int:
    fields = task["launch"] | {key: tuple(task["launch"][key]) for key in ("target", "shares")}
    fields["output"] = WorkerOutput(**fields["output"])
    directory = task["run_directory"]
    if task.get("bound") and sys.platform == "linux":
        end_with_parent(signal.SIGTERM)  # not SIGKILL as in jobs: first it ends its workers and cleans up
    try:
        run(Launch(**fields), run_directory=Path(directory) if directory else None)
    except UnevenError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, LaunchError) else 2
    return 0


if __name__ == "__main__":
    sys.exit(_main(json.loads(sys.argv[1])))
