"""Goes into a node and becomes what is to run there: ``python -m uneven.emulate.enter TASK``, TASK in JSON.

Limits and namespaces are this process's own before the first line of the program runs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from uneven.emulate import kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What to become, and inside of what.

    Attributes:
        program: with its arguments.
        groups: control groups.
        network: descriptor of a network namespace; with one, /dev/shm is its own too, as on a machine.
        hosts: then, the lines of /etc/hosts there.
    """

    program: tuple[str, ...]
    groups: tuple[str, ...] = ()
    network: int | None = None
    hosts: str = ""


def command(task: Task) -> list[str]:
    """What to start so that ``task`` is carried out."""
    return [sys.executable, "-P", "-m", "uneven.emulate.enter", json.dumps(asdict(task))]


def main(text: str) -> None:
    """Carry out a task; does not come back."""
    values = json.loads(text)
    groups: Sequence[str] = values["groups"]
    for group in groups:
        (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
    if values["network"] is not None:
        kernel.enter(values["network"], kernel.NEW_NETWORK)
        kernel.own_shared_memory()
        kernel.own_hosts(values["hosts"])
    os.execv(values["program"][0], values["program"])


if __name__ == "__main__":
    main(sys.argv[1])
