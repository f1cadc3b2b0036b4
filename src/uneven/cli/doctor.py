"""The command ``uneven doctor``: the abilities of this machine, each with its consequence or cure."""

import importlib.metadata
import json
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from uneven.cli import answer
from uneven.cli.options import switch
from uneven.cluster.emulate import capabilities, emulation_state
from uneven.cluster.emulate.pure.requirements import Able
from uneven.errors import ConfigError, install_hint
from uneven.journal.report.console import Console
from uneven.runtime.installed import VERSION
from uneven.runtime.system import LINUX


class Level(Enum):
    """The importance of a finding."""

    GOOD = "ok"
    NOTE = "note"  # something does less than it could
    MISSING = "missing"  # training on several workers does not work without it


GOOD, NOTE, MISSING = Level.GOOD, Level.NOTE, Level.MISSING
_STYLES = {Level.GOOD: "green", Level.NOTE: "yellow", Level.MISSING: "bold red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of ``uneven doctor``: a finding, and its consequence or cure."""

    topic: str
    level: Level
    found: str
    consequence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFacts:
    """The results of a test of torch in a new process; ``error`` is empty if it passed."""

    version: str = ""
    build: str = ""
    devices: int = 0
    nccl: bool = False
    gloo: bool = False  # two processes added their tensors up over 127.0.0.1
    error: str = ""


def doctor(
    form: answer.Format = answer.Form.TEXT,
    clean: Annotated[
        bool, switch("Only remove and list the leftovers of a killed `uneven emulate`.", "--clean")
    ] = False,
) -> None:
    """Report the abilities and limits of this machine.

    Each line is a finding with its consequence or cure. The command starts two small processes for a moment to test
    torch and gloo.

    Exit codes: 0 training on several workers works here; 1 it does not; 2 wrong option, or --clean without root.

    \b
    Examples:
      uneven doctor
      uneven doctor --format json     for bug reports
      sudo uneven doctor --clean
    """
    if clean:
        _clean()
        return
    with Console(stderr=True).status("testing torch and gloo with two processes …"):
        found = findings()
    works = all(finding.level is not Level.MISSING for finding in found)
    if form is answer.Form.JSON:
        answer.write({"works": works, "findings": found})
    else:
        show(found, Console(highlight=False))
    raise typer.Exit(0 if works else 1)


def _clean() -> None:
    if not LINUX or os.geteuid() != 0:
        raise ConfigError(
            "doctor --clean: only emulations as root leave something, and only root can remove it: use sudo"
        )
    removed = emulation_state.clean()
    for one in removed:
        typer.echo(f"removed the leftovers of {one}")
    if not removed:
        typer.echo("no emulation has left anything")


def show(found: list[Finding], console: Console) -> None:
    table = Table.grid(padding=(0, 2))
    for finding in found:
        words = Text.assemble(finding.found, "\n", (f"→ {finding.consequence}", "dim"))
        table.add_row(Text(finding.level.value, _STYLES[finding.level]), Text(finding.topic, "bold"), words)
    console.print(table)
    missing = ", ".join(finding.topic for finding in found if finding.level is Level.MISSING)
    verdict = f"Several workers cannot train here: {missing}." if missing else "Several workers can train here."
    console.print(Text(f"\n{verdict}", style="bold red" if missing else "bold green"))


def findings(environment: Mapping[str, str] = os.environ) -> list[Finding]:
    torch = try_torch(environment)
    return [
        on_torch(torch),
        on_gloo(torch),
        on_gpus(torch, *driver_gpus()),
        on_emulation(capabilities.able(isolated=capabilities.why_not_isolated())),
        on_extras(extras(importlib.metadata.requires("uneven") or ())),
    ]


def try_torch(environment: Mapping[str, str], limit_s: int = 60) -> TorchFacts:
    """Run :mod:`uneven.cli.torch_probe`, which ends at the time limit, and read its report."""
    # A separate process, because a broken torch may hang or crash its process.
    # -P: a file in the working directory must not hide a module.
    command = [sys.executable, "-P", "-m", "uneven.cli.torch_probe", str(limit_s)]
    trial = subprocess.run(command, capture_output=True, text=True, errors="replace", env=dict(environment))
    values: dict[str, Any] = {}
    for line in trial.stdout.splitlines():
        if line.startswith("{"):
            values |= json.loads(line)
    error = ""
    if trial.returncode:
        late = hasattr(signal, "SIGALRM") and trial.returncode == -signal.SIGALRM
        error = f"no answer within {limit_s} s" if late else f"the trial ended with exit code {trial.returncode}"
        if last := [line.strip() for line in trial.stderr.splitlines() if line.strip()][-1:]:
            error += f": {last[0]}"
    return TorchFacts(**values, error=error)


NO_NVML = f"use of GPUs is not measured: {install_hint('.[gpu]')}"


def driver_gpus() -> tuple[list[str], str]:
    """Return the names of the GPUs that NVML finds, or the reason why it finds none."""
    if find_spec("pynvml") is None:
        return [], NO_NVML
    import pynvml

    try:
        pynvml.nvmlInit()
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return [pynvml.nvmlDeviceGetName(handle) for handle in handles], ""
    except pynvml.NVMLError as error:
        return [], f"NVML: {error}"


def extras(requirements: Sequence[str]) -> dict[str, list[str]]:
    """Return the missing packages of each extra in ``requirements`` (as ``ray[train]>=2.50; extra == 'ray'``)."""
    found: dict[str, list[str]] = {}
    for requirement in requirements:
        if named := re.match(r"""([\w.-]+).*extra == ['"](\w+)""", requirement):
            absent = found.setdefault(named[2], [])
            try:
                importlib.metadata.version(named[1])
            except importlib.metadata.PackageNotFoundError:
                absent.append(named[1])
    return found


def on_torch(torch: TorchFacts) -> Finding:
    if not torch.version:
        return Finding("torch", MISSING, torch.error, "nothing trains: pip install --force-reinstall torch")
    python = f"Python {platform.python_version()} on {platform.system()}, uneven {VERSION}"
    return Finding("torch", GOOD, f"{torch.version} ({torch.build} build), {python}", "one worker trains")


def on_gloo(torch: TorchFacts) -> Finding:
    if torch.gloo:
        return Finding("gloo", GOOD, "two processes added up over 127.0.0.1", "several workers train on this machine")
    cure = "workers cannot exchange: unset GLOO_SOCKET_IFNAME or correct it, and let the firewall pass the loopback"
    return Finding("gloo", MISSING, torch.error or "the sum of two processes was wrong", cure)


def on_gpus(torch: TorchFacts, known: Sequence[str], error: str = "") -> Finding:
    if torch.devices == 0 and not known:
        return Finding("gpus", GOOD, f"none ({error})" if error else "none", "workers train on CPU")
    found = f"{', '.join(known) or torch.build}; torch sees {torch.devices}"
    if torch.devices == 0:
        cure = f"a {torch.build} build: install one for your driver from pytorch.org, or check CUDA_VISIBLE_DEVICES"
        return Finding("gpus", NOTE, found, cure)
    if torch.devices < len(known):
        return Finding("gpus", NOTE, found, "check CUDA_VISIBLE_DEVICES")
    if not torch.nccl:
        return Finding("gpus", NOTE, found, "workers exchange through gloo: install a build of torch that has NCCL")
    if error == NO_NVML and torch.build.startswith("CUDA"):
        return Finding("gpus", NOTE, found, error)
    return Finding("gpus", GOOD, found, f"one worker per GPU, through NCCL: uneven run --nproc {torch.devices}")


def on_emulation(able: Able) -> Finding:
    if able.load:
        cure = "`uneven emulate` gives shares of cores only; for links, memory and load run it as root on Linux"
        return Finding("emulation", NOTE, able.load, cure)
    if missing := [why for why in (able.memory, able.links, able.latency) if why]:
        cure = "`uneven emulate` does not support these keys: give --leave-out KEY, or use `uneven simulate`"
        return Finding("emulation", NOTE, "; ".join(missing), cure)
    return Finding("emulation", GOOD, "root, namespaces and control groups", "`uneven emulate` supports every key")


def on_extras(absent: Mapping[str, Sequence[str]]) -> Finding:
    found = f"installed: {', '.join(name for name, packages in absent.items() if not packages) or 'none'}"
    if lacking := [name for name, packages in absent.items() if packages]:
        cure = f"for {', '.join(lacking)}: {install_hint('.[NAME]')}"
        return Finding("extras", NOTE, found, cure)
    return Finding("extras", GOOD, found, "nothing to install")
