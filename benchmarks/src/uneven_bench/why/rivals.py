"""``uneven bench why --case rivals``: the same slow worker, explained by ``uneven why`` and by TraceML.

Each runs as its own documentation says: ``uneven why -- torchrun …`` on a script without a change, ``traceml run`` on
the script with TraceML's two calls. Both judge at the end of the run.
"""

import json
import os
import random
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from uneven.cluster.emulate.ports import quiet_ports
from uneven.why import explain
from uneven_bench.harness.faulty import numbers_of
from uneven_bench.harness.program import finished
from uneven_bench.harness.show import Progress
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
_SCRIPT = str(Path(__file__).with_name("rivals_script.py"))


@dataclass(frozen=True, slots=True)
class Said:
    """A tool's answer."""

    rank: int  # -1 if it names none
    cause: str
    words: str


def run(quick: bool, progress: Progress, seed: int, only: str | None = None) -> dict[str, Any]:
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
        if only is not None and number not in numbers_of(only):
            continue
        row: dict[str, Any] = {"fault": fault, "rank": rank if fault != "none" else -1, "late_s": seconds}
        for place, (tool, play) in enumerate(tools.items()):
            progress("tools", f"{fault}, {tool}", number / len(faults))
            with tempfile.TemporaryDirectory(prefix="uneven-bench-why-", ignore_cleanup_errors=True) as folder:
                said = play([tool, fault, str(rank), str(seconds)], Path(folder))
            row[tool] = {
                "answer": said.words,
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
    launch += ["--master-port", str(quiet_ports(1)[0]), _SCRIPT, *words]
    _play([sys.executable, "-m", "uneven", "why", "--run-dir", str(folder / "run"), "--", *launch], folder)
    found = explain(folder / "run")
    if not found.suspects:
        return Said(-1, "", f"no worker; {found.bound}")
    first = found.suspects[0]
    return Said(first.rank, first.cause, f"rank {first.rank}, {first.cause}: {first.evidence}")


def _traceml(words: list[str], folder: Path) -> Said:
    command = [str(Path(sys.executable).with_name("traceml")), "run", _SCRIPT, "--mode=summary"]
    command += ["--run-name", "run", "--logs-dir", str(folder), "--nproc-per-node", str(WORKERS)]
    first, second = map(str, quiet_ports(2))
    command += ["--master-port", first, "--aggregator-port", second, "--args", *words]
    _play(command, folder)
    summary = json.loads((folder / "run" / "final_summary.json").read_text())
    verdict = summary["step_time"]["diagnosis"]
    rank = verdict["evidence"].get("culprit_rank", -1) if verdict["kind"].endswith("STRAGGLER") else -1
    return Said(rank, verdict["kind"] if rank >= 0 else "", f"{verdict['status']}: {verdict['summary']}")


def _play(command: list[str], folder: Path) -> None:
    own = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}  # torchrun leaves a folder there
    finished(command, _WITHIN_S, cwd=folder, env=own)
