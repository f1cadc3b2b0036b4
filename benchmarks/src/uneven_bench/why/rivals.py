"""``uneven bench why --case rivals``: the same slow worker, explained by ``uneven why`` and by TraceML.

Each runs as its own documentation says: ``uneven why -- torchrun …`` on a script without a change, ``traceml run`` on
the script with TraceML's two calls. Both judge at the end of the run.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.table import Table

from uneven.why import explain
from uneven_bench.elastic.arms import free_port
from uneven_bench.harness.show import Progress, table_of
from uneven_bench.why.cases import WORKERS

# The fault → the answers that are right: ours, TraceML's. It divides a step into input, forward, backward, optimizer.
FAULTS: dict[str, tuple[str, str]] = {
    "data": ("data", "INPUT_STRAGGLER"),
    "blocked": ("blocked", "COMPUTE_STRAGGLER"),
    "processor": ("processor", "COMPUTE_STRAGGLER"),
    "batch": ("batch", "COMPUTE_STRAGGLER"),
    "backward": ("blocked", "STRAGGLER"),
    "optimizer": ("blocked", "STRAGGLER"),
    "none": ("", ""),
}
FEW = ("data", "backward")
TRACEML = "traceml-ai"
_WITHIN_S = 300.0


@dataclass(frozen=True, slots=True)
class Said:
    """A tool's answer."""

    rank: int  # -1 if it names none
    cause: str
    words: str


def run(quick: bool, progress: Progress, seed: int, only: int | None = None) -> dict[str, Any]:
    """Play each fault under each tool that is installed; ``only``: one of them. Result: ``tools`` (a row for each),
    ``version`` (TraceML's), ``left_out``."""
    rng = random.Random(seed)
    tools: dict[str, Callable[[list[str], Path], Said]] = {"uneven": _uneven, "traceml": _traceml}
    left_out = {}
    if (version := _version()) is None:
        del tools["traceml"]
        left_out["traceml"] = f"{TRACEML} is not installed"
    rows = []
    faults = FEW if quick else tuple(FAULTS)
    for number, fault in enumerate(faults):
        rank, seconds = rng.randrange(WORKERS), round(rng.uniform(0.04, 0.12), 3)
        if only not in (None, number):
            continue
        row: dict[str, Any] = {"fault": fault, "rank": rank if fault != "none" else -1, "late_s": seconds}
        for place, (tool, play) in enumerate(tools.items()):
            progress("tools", f"{fault}, {tool}", number / len(faults))
            folder = Path(tempfile.mkdtemp(prefix="uneven-bench-why-"))
            try:
                said = play([tool, fault, str(rank), str(seconds)], folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            row[tool] = {
                "said": said.words,
                "rank_right": said.rank == row["rank"],
                "cause_right": said.rank == row["rank"] and said.cause == FAULTS[fault][place],
            }
        rows.append(row)
    return {"seed": seed, "tools": rows, "version": version, "left_out": left_out}


def _version() -> str | None:
    try:
        return metadata.version(TRACEML)
    except metadata.PackageNotFoundError:
        return None


def _uneven(words: list[str], folder: Path) -> Said:
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(WORKERS)]
    launch += ["--master-port", str(free_port()), str(_script()), *words]
    _play([sys.executable, "-m", "uneven", "why", "--run-dir", str(folder / "run"), "--", *launch], folder)
    found = explain(folder / "run")
    if not found.suspects:
        return Said(-1, "", f"no worker; {found.bound}")
    first = found.suspects[0]
    return Said(first.rank, first.cause, f"rank {first.rank}, {first.cause}: {first.evidence}")


def _traceml(words: list[str], folder: Path) -> Said:
    command = [str(Path(sys.executable).with_name("traceml")), "run", str(_script()), "--mode=summary"]
    command += ["--run-name", "run", "--logs-dir", str(folder), "--nproc-per-node", str(WORKERS)]
    command += ["--master-port", str(free_port()), "--aggregator-port", str(free_port()), "--args", *words]
    _play(command, folder)
    summary = json.loads((folder / "run" / "final_summary.json").read_text())
    verdict = summary["step_time"]["diagnosis"]
    rank = verdict["evidence"].get("culprit_rank", -1) if verdict["kind"].endswith("STRAGGLER") else -1
    return Said(rank, verdict["kind"] if rank >= 0 else "", f"{verdict['status']}: {verdict['summary']}")


def _script() -> Path:
    return Path(__file__).with_name("rivals_script.py")


def _play(command: list[str], folder: Path) -> None:
    with (folder / "output").open("w") as output:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)},  # torchrun leaves a folder there
            stdout=output,
            stderr=output,
            timeout=_WITHIN_S,
            check=False,
        )
    if done.returncode:
        last = (folder / "output").read_text()[-2000:]
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {last}")


def tables(result: dict[str, Any]) -> list[Table]:
    tools = [name for name in ("uneven", "traceml") if name not in result["left_out"]]
    rows = [
        (
            "none" if row["rank"] < 0 else f"{row['fault']} on rank {row['rank']}, {row['late_s'] * 1e3:.0f} ms",
            *(_mark(row[tool]) for tool in tools),
        )
        for row in result["tools"]
    ]
    heads = {"uneven": "uneven why", "traceml": f"TraceML {result['version']}"}
    made = [table_of("Who is slow, and why", ("fault", *(heads[tool] for tool in tools)), rows, show_lines=True)]
    if result["left_out"]:
        made.append(table_of("Left out", ("tool", "because"), list(result["left_out"].items())))
    return made


def _mark(one: dict[str, Any]) -> str:
    right = "rank and cause" if one["cause_right"] else "rank" if one["rank_right"] else "wrong"
    return f"{right}: {one['said']}"
