"""The program whose results all Ray tests read: one cluster, and one phase after another on it.

Usage: all_phases.py FOLDER. The last line is JSON: for each phase its result, or the traceback with which it ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import elastic_ray
import fleet_ray_world
import focus_ray
from ray_world import cluster, nodes

EXAMPLE = Path(__file__).parents[3] / "examples" / "03_ray_train.py"


def example(there: Any, folder: Path) -> str:
    """Run the example of Ray Train on two nodes; its output."""
    nodes(there, 2)
    done = subprocess.run(
        [sys.executable, EXAMPLE], cwd=folder, env={**os.environ, "RAY_ADDRESS": there.address}, timeout=200,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    return f"{done.stdout}\nended with {done.returncode}"


PHASES = {"elastic": elastic_ray.play, "focus": focus_ray.play, "fleet": fleet_ray_world.play, "example": example}
"""In this order: the first one needs a cluster of one node, and the others bring it to two."""


def main(folder: Path) -> None:
    """Play all phases, also those after one that has failed."""
    found: dict[str, Any] = {}
    with cluster() as there:
        for name, play in PHASES.items():
            (folder / name).mkdir()
            try:
                found[name] = play(there, folder / name)
            except (Exception, SystemExit):  # noqa: BLE001  # the test of this phase prints it
                found[name] = {"failed": traceback.format_exc()}
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
