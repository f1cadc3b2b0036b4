"""``make gpu``: all tests marked ``gpu``, then ``uneven bench gpu``, in at most nine minutes and with one results file.

From a fresh copy of the tree, with torch and what ``pyproject.toml`` and its group ``test`` name::

    PYTHONPATH=src:benchmarks/src python -m uneven_bench.gpu.record --out gpu.json

The file is written again after each part, so a machine that is taken away leaves the parts that had ended.
"""

import argparse
import contextlib
import datetime
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from uneven.errors import ConfigError
from uneven_bench.gpu import outcomes

ROOT = Path(__file__).parents[4]
LIMIT_S = 530.0
"""The time for all parts together; the rest of nine minutes is for the start and the file."""
CASES = {"second-order": True, "session": False, "pair": False, "unlike": False}
"""The cases of ``uneven bench gpu``, and whether in their short form."""


class Part(NamedTuple):
    """A command, and what it leaves."""

    name: str  # "tests", or a case of ``uneven bench gpu``
    line: Sequence[str]
    within_s: float  # then it is killed


def parts(root: Path = ROOT) -> list[Part]:
    """Return the tests and the cases of the bench, of the tree at ``root``."""
    marked = [path for path in (root / "tests" / "unit").rglob("test_*.py") if "pytest.mark.gpu" in path.read_text()]
    files = [str(path.relative_to(root)) for path in (root / "tests" / "gpu", *sorted(marked))]
    pytest = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", outcomes.__name__, "-q", *files]
    # Not `uneven bench`, which finds the benches only where they are installed.
    bench = "import json; from uneven_bench.gpu.bench import run; print(json.dumps(run({}, lambda *said: None, {!r})))"
    cases = [Part(name, [sys.executable, "-c", bench.format(quick, name)], 150.0) for name, quick in CASES.items()]
    return [Part("tests", pytest, 330.0), *cases]


def hardware() -> dict[str, Any]:
    """Return the GPUs, their driver, the host and the build of torch. Raises ConfigError: torch sees no GPU."""
    import torch

    if not torch.cuda.is_available():
        build = torch.version.cuda or torch.version.hip or "CPU"
        raise ConfigError(
            f"make gpu needs an NVIDIA or AMD GPU, and torch {torch.__version__} (build for {build}) sees none: "
            "`uneven doctor` says why"
        )
    about = [torch.cuda.get_device_properties(place) for place in range(torch.cuda.device_count())]
    return {
        "gpus": [{"name": one.name, "memory_bytes": one.total_memory} for one in about],
        "driver": _driver(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": {
            "version": str(torch.__version__),
            "cuda": torch.version.cuda,
            "hip": torch.version.hip,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else None,
        },
    }


def record(out: Path, about: dict[str, Any], asked: Sequence[Part], limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Run the parts one after the other, and keep the results file at ``out``; return its content.

    Args:
        about: the machine, see :func:`hardware`.
        limit_s: of all parts together; a part that could not begin, or that was killed, is in ``left_out``.

    Returns:
        ``date``, ``commit``, ``hardware``, ``seconds`` (part → its time), ``tests`` (test → ``outcome``, ``why`` and
        ``seconds``), ``bench`` (the figures of the cases, see :func:`uneven_bench.gpu.bench.run`) and ``left_out``
        (part → the reason).
    """
    result: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "hardware": about,
        **{key: {} for key in ("seconds", "tests", "bench", "left_out")},
    }
    began_s = time.monotonic()
    for part in asked:
        left_s = limit_s - (time.monotonic() - began_s)
        if left_s <= 0.0:
            result["left_out"][part.name] = "no time was left"
            continue
        print(f"uneven: {part.name}, at most {min(left_s, part.within_s):.0f} s", file=sys.stderr)
        _one(part, min(left_s, part.within_s), result)
        new = out.with_name(f"{out.name}.new")
        new.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        new.replace(out)
    return result


def _one(part: Part, within_s: float, result: dict[str, Any]) -> None:
    began_s, tests = time.monotonic(), part.name == "tests"
    with tempfile.TemporaryDirectory(prefix="uneven-gpu-") as folder:
        ended = Path(folder) / "outcomes"
        ended.touch()
        with _running(part.line, {outcomes.VARIABLE: str(ended)}, quiet=not tests) as process:
            try:
                said, wrong = process.communicate(timeout=within_s)
                last = (wrong or "").strip().rpartition("\n")[2]
                why = f"it ended with exit code {process.returncode}: {last}" if process.returncode else ""
            except subprocess.TimeoutExpired:
                said, why = "", f"it was killed after {within_s:.0f} s"
        for line in ended.read_text(encoding="utf-8").splitlines():
            told = json.loads(line)
            known = result["tests"].get(told["test"])
            if known is None or known["outcome"] != "failed":  # a test may pass, and fail where it is torn down
                result["tests"][told.pop("test")] = told
    if tests and any(one["outcome"] == "failed" for one in result["tests"].values()):
        why = why if process.returncode != 1 else ""  # the failed tests say so themselves
    if not tests and not why:
        result["bench"] |= json.loads(said.splitlines()[-1])
    if why:
        result["left_out"][part.name] = why
    result["seconds"][part.name] = round(time.monotonic() - began_s, 1)


@contextlib.contextmanager
def _running(line: Sequence[str], more: dict[str, str], *, quiet: bool) -> Iterator[subprocess.Popen[str]]:
    """Run a command in its own session, of which nothing is left at the end."""
    piped = subprocess.PIPE if quiet else None
    process = subprocess.Popen(
        line, cwd=ROOT, env={**os.environ, **more}, stdout=piped, stderr=piped, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def summary(result: dict[str, Any]) -> str:
    """Return the lines at the end: how many tests passed, each that did not, the figures, and what was left out."""
    ends = [one["outcome"] for one in result["tests"].values()]
    gpus = ", ".join(one["name"] for one in result["hardware"]["gpus"])
    lines = [f"{gpus}: {', '.join(f'{ends.count(one)} {one}' for one in ('passed', 'failed', 'skipped'))}"]
    for name, one in result["tests"].items():
        if one["outcome"] != "passed":
            lines.append(f"  {one['outcome']} {name}: {one['why'].splitlines()[-1] if one['why'] else ''}")
    lines += [f"  left out {name}: {why}" for name, why in result["left_out"].items()]
    for model, method, figure, said in _refreshes(result["bench"].get("second_order", {})):
        lines.append(f"  {model}: a refresh of {method} takes {figure:.2f} × kfac-pytorch's {said}")
    return "\n".join(lines)


def _refreshes(second_order: dict[str, Any]) -> Iterator[tuple[str, str, float, str]]:
    for model, methods in second_order.items():
        if "kfac-pytorch" in methods:
            ours, theirs = (methods[one]["refresh"] for one in ("K-FAC", "kfac-pytorch"))
            yield model, "K-FAC", ours / theirs, f"({1000 * theirs:.0f} ms)"


def main(
    arguments: Sequence[str] | None = None,
    about: Callable[[], dict[str, Any]] = hardware,
    asked: Callable[[], list[Part]] = parts,
) -> int:
    """Run all, print a summary, and return 1 if a test failed or a part was left out; 2 without a GPU."""
    parser = argparse.ArgumentParser(prog="make gpu", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("build/gpu.json"), help="the results file [build/gpu.json]")
    options = parser.parse_args(arguments)
    try:
        machine = about()
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    options.out.parent.mkdir(parents=True, exist_ok=True)
    result = record(options.out.absolute(), machine, asked())
    print(summary(result))
    print(f"the results are in {options.out}; docs/measurements/gpu.md takes them, with date and hardware")
    return int(bool(result["left_out"]) or any(one["outcome"] == "failed" for one in result["tests"].values()))


def _commit() -> str:
    """Return the commit of the tree; empty outside of a repository."""
    asked = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True).stdout.strip() if shutil.which("git") else ""


def _driver() -> str:
    """Return the version of NVIDIA's driver; empty without ``nvidia-smi``."""
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    if shutil.which(asked[0]) is None:
        return ""
    return subprocess.run(asked, capture_output=True, text=True).stdout.partition("\n")[0].strip()


if __name__ == "__main__":
    sys.exit(main())
