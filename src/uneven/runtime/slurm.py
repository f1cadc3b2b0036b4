"""A task of Slurm's ``srun``, translated to torchrun's variables.

Only variables of the step count, which only ``srun`` sets; those of the job also exist in a batch script, which runs
once. Names are from Slurm's manual, ``man srun``, "OUTPUT ENVIRONMENT VARIABLES".
"""

import re
from collections.abc import Mapping

from uneven.errors import ConfigError

_FIRST_PORT, _PORTS = 29500, 3000  # up to 32499, below the ports that Linux assigns
_TASKS, _NODES, _PER_NODE = "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"


def as_torchrun(env: Mapping[str, str]) -> dict[str, str]:
    """Return ``RANK``, ``WORLD_SIZE`` and so on for this task; nothing if they are set, or for a single task.

    ``MASTER_ADDR`` and ``MASTER_PORT`` keep their values. By default tasks meet on the first node of the step, at a
    port computed from the numbers of job and step. So two jobs on a node do not collide. Raises ConfigError for a
    variable that is missing or not in Slurm's format.
    """
    if "RANK" in env or "WORLD_SIZE" in env or env.get(_TASKS, "1") == "1":
        return {}
    job, step = _number(env, "SLURM_JOB_ID"), _number(env, "SLURM_STEP_ID")
    return {
        "RANK": str(_number(env, "SLURM_PROCID")),
        "WORLD_SIZE": str(_number(env, _TASKS)),
        "LOCAL_RANK": str(_number(env, "SLURM_LOCALID")),
        "LOCAL_WORLD_SIZE": str(_tasks_here(env)),
        "MASTER_ADDR": env.get("MASTER_ADDR") or first_node(_text(env, _NODES)),
        "MASTER_PORT": env.get("MASTER_PORT") or str(_FIRST_PORT + (64 * job + step) % _PORTS),
    }


def _tasks_here(env: Mapping[str, str]) -> int:
    counts, node = tasks_per_node(_text(env, _PER_NODE)), _number(env, "SLURM_NODEID")
    if node >= len(counts):
        raise ConfigError(f"SLURM_NODEID={node}, but {_PER_NODE}={env[_PER_NODE]!r} has {len(counts)} nodes: use srun")
    return counts[node]


def first_node(nodes: str) -> str:
    """Return the first node of a list: ``"tux[007-009,12],login"`` → ``"tux007"``."""
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", nodes).partition(",")[0]


def tasks_per_node(text: str) -> list[int]:
    """Return the tasks of each node: ``"2(x3),1"`` → ``[2, 2, 2, 1]``. Raises ConfigError for another format."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part, re.ASCII)
        if match is None:
            raise ConfigError(
                f"{_PER_NODE}={text!r} is not in Slurm's format, as in 2(x3),1: start the script with srun"
            )
        found += [int(match[1])] * int(match[2] or 1)
    return found


def _text(env: Mapping[str, str], name: str) -> str:
    if not env.get(name):
        raise ConfigError(
            f"{_TASKS}={env[_TASKS]} means that srun started this task, but {name} is not set: start the script "
            f"with srun, or unset {_TASKS} to run without it"
        )
    return env[name]


def _number(env: Mapping[str, str], name: str) -> int:
    text = _text(env, name)
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"{name}={text!r} is not a whole number: start the script with srun")
    return int(text)
