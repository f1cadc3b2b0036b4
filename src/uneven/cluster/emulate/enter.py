"""The entry of a program into a node: ``python -m uneven.cluster.emulate.enter TASK``, TASK in JSON.

Limits and namespaces apply to this process before the first line of the program runs.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from uneven.cluster.emulate import kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A program to run, and its surroundings."""

    program: tuple[str, ...]  # with its arguments
    groups: tuple[str, ...] = ()  # control groups
    # descriptor of a network namespace; with one, /dev/shm is private too, as on a real machine
    network: int | None = None
    hosts: str = ""  # with a network, the lines of its /etc/hosts


def command(task: Task) -> list[str]:
    """Return the command that runs ``task``."""
    return [sys.executable, "-P", "-m", "uneven.cluster.emulate.enter", json.dumps(asdict(task))]


def main(text: str) -> None:
    """Run a task; does not return."""
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
