"""Start workers through torch's own elastic launcher.

:func:`run` is the launcher itself and stays until the workers have ended; :func:`start` and :func:`local` run
it in a process of its own, for a program that wants to go on meanwhile (the demo, the benchmarks). torch is
imported only when workers are started.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from uneven.cluster.processes import descendants, import_path
from uneven.cluster.throttle_rule import ShareRule
from uneven.errors import ConfigError, LaunchError, UnevenError, UnknownNameError

_STOP_WITHIN_S = 15.0
_COUNTS = ("auto", "cpu", "gpu")
_MEETINGS = ("static", "c10d")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to start and how, in ``torchrun``'s words.

    Attributes:
        target: script (or module) and its arguments.
        module: the target is a module, as with ``python -m``.
        nproc: workers on this machine, or "gpu", "cpu", "auto" for one per device; None stands for one per
            entry of ``shares``, else one per GPU, else one.
        nnodes: machines, "N" or "MIN:MAX".
        shares: share of a core for each local rank; empty lets them use what they can get.
        throttle_period_s: length of a throttled worker's run-and-stop cycle; shorter is smoother and costs more.
        wait_ready: throttle a worker only once it has called ``rundir.mark_ready``.
        rdzv_backend: None is a standalone run on one machine, and "static" with ``nnodes`` above one.

    Raises:
        ConfigError: values that cannot be or do not fit each other.
        UnknownNameError: the script does not exist.
    """

    target: tuple[str, ...]
    module: bool = False
    nproc: str | None = None
    nnodes: str = "1"
    node_rank: int = 0
    rdzv_backend: str | None = None
    rdzv_endpoint: str = ""
    rdzv_id: str = ""
    master_addr: str = "127.0.0.1"
    master_port: int | None = None
    local_addr: str | None = None
    standalone: bool = False
    max_restarts: int = 0
    shares: tuple[float, ...] = ()
    throttle_period_s: float = 0.02
    wait_ready: bool = False

    def __post_init__(self) -> None:
        if not self.target:
            raise ConfigError("nothing to run: name a script, for instance `uneven run train.py`")
        script = Path(self.target[0])
        if not self.module and not script.is_file():
            raise UnknownNameError("script", str(script), map(str, script.parent.glob("*.py")))
        for share in self.shares:
            ShareRule(share=share, period_s=self.throttle_period_s)
        if self.nproc is not None and self.nproc not in _COUNTS:
            workers = _positive("--nproc-per-node", self.nproc, "or gpu, cpu or auto")
            if self.shares and workers != len(self.shares):
                raise ConfigError(
                    f"--nproc-per-node {workers} with {len(self.shares)} shares "
                    f"({', '.join(map(str, self.shares))}): give one share per worker"
                )
        if self.rdzv_backend is not None and self.rdzv_backend not in _MEETINGS:
            raise UnknownNameError("--rdzv-backend", self.rdzv_backend, _MEETINGS)
        if self.max_restarts < 0:
            raise ConfigError(f"--max-restarts {self.max_restarts}: it must be zero or more")
        least, most = self.nodes
        if not 0 <= self.node_rank < most:
            raise ConfigError(f"--node-rank {self.node_rank} with --nnodes {self.nnodes}: count from 0 to {most - 1}")
        if self.standalone and most > 1:
            raise ConfigError(f"--standalone is for one machine, but --nnodes is {self.nnodes}: leave one of them out")
        if least > most:
            raise ConfigError(f"--nnodes {self.nnodes}: the least number comes first, as in {most}:{least}")

    @property
    def nodes(self) -> tuple[int, int]:
        """Least and greatest number of machines."""
        first, _, last = self.nnodes.partition(":")
        least = _positive("--nnodes", first, "or MIN:MAX")
        return least, _positive("--nnodes", last, "or MIN:MAX") if last else least

    @property
    def alone(self) -> bool:
        """Whether this machine needs nobody else and any free port will do."""
        named = self.rdzv_backend or self.rdzv_endpoint or self.master_port
        return self.standalone or (self.nodes[1] == 1 and not named)


def run(launch: Launch, *, run_directory: Path | None = None) -> None:
    """Start the workers and stay until they have ended.

    Call it in the main thread: torch's launcher takes over the signals while it works.

    Args:
        launch: what to start.
        run_directory: told to the workers in ``UNEVEN_RUN``.

    Raises:
        LaunchError: a worker died, naming its rank and exit code or signal; the workers could not be started;
            or the run was interrupted. All workers have ended by then.
    """
    from uneven.cluster import agent  # imports torch

    agent.run(launch, run_directory)


class LocalRun:
    """A launcher in a process of its own, with its workers below it; a ``with`` block stops it at the end.

    Attributes:
        pid: of the launcher.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        return self._process.poll()

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the end; the exit code, that of the worker that died first if one did.

        Raises:
            LaunchError: it still runs after ``timeout_s``. It is not stopped by that.
        """
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise LaunchError(f"the run (process {self.pid}) has not ended within {timeout_s} s") from None

    def stop(self) -> int:
        """End the launcher and every worker, gently first; the exit code."""
        if self._process.poll() is None:
            workers = descendants(self.pid)
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                for pid in workers:
                    _kill(pid)
        return self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start(
    launch: Launch,
    *,
    run_directory: Path | None = None,
    env: Mapping[str, str] | None = None,
    output: Path | None = None,
) -> LocalRun:
    """Start the launcher in a process of its own and come back at once.

    Args:
        launch: what to start.
        run_directory: told to the workers in ``UNEVEN_RUN``.
        env: variables on top of this process's own.
        output: file for everything that launcher and workers print; None shows it here.
    """
    task = {"launch": dataclasses.asdict(launch), "run_directory": run_directory and str(run_directory)}
    if launch.wait_ready and run_directory is None:
        raise ConfigError("wait_ready needs a run_directory: workers say there that they are ready")
    if run_directory is not None:
        run_directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-P", "-m", "uneven.launch", json.dumps(task)]
    environment = {**os.environ, "PYTHONPATH": import_path(), **(env or {})}
    sink = None if output is None else output.open("ab")
    try:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink and subprocess.STDOUT
        )
    finally:
        if sink is not None:
            sink.close()
    return LocalRun(process)


def local(
    target_argv: Sequence[str],
    nproc: int,
    *,
    shares: Sequence[float] | None = None,
    run_directory: Path | None = None,
    env: Mapping[str, str] | None = None,
    wait_ready: bool = False,
    output: Path | None = None,
    timeout_s: float | None = None,
) -> int:
    """Run a script on local workers until its end.

    Args:
        target_argv: script and arguments; ``["-m", "package.module", …]`` for a module.
        nproc: number of workers.
        shares: share of a core of each; None lets them use what they can get.
        run_directory: told to the workers in ``UNEVEN_RUN``.
        env: variables on top of this process's own.
        wait_ready: throttle a worker only once it has called ``rundir.mark_ready``; needs a run directory.
            Without it workers import torch on their share of a core, which takes long on a tenth.
        output: file for everything that is printed; None shows it here.
        timeout_s: the run is ended if it takes longer.

    Returns:
        0, or the exit code of the worker that died first (128 + number for a signal).

    Raises:
        ConfigError: before anything is started, for values that cannot be.
        LaunchError: the time was up; everything has been ended.
    """
    module = bool(target_argv) and target_argv[0] == "-m"
    launch = Launch(
        target=tuple(target_argv[1:] if module else target_argv),
        module=module,
        nproc=str(nproc),
        shares=tuple(shares or ()),
        wait_ready=wait_ready,
    )
    with start(launch, run_directory=run_directory, env=env, output=output) as launcher:
        return launcher.wait(timeout_s)


def run_id(launch: Launch) -> str:
    """Name under which the machines of a run find each other; made up where there is only one."""
    return str(uuid.uuid4()) if launch.alone else launch.rdzv_id or "none"


def _positive(option: str, text: str, alternative: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ConfigError(f"{option} {text}: it must be a positive number, {alternative}")
    return int(text)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _main(task: dict[str, Any]) -> int:
    fields = task["launch"] | {key: tuple(task["launch"][key]) for key in ("target", "shares")}
    directory = task["run_directory"]
    try:
        run(Launch(**fields), run_directory=Path(directory) if directory else None)
    except UnevenError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, LaunchError) else 2
    return 0


if __name__ == "__main__":
    sys.exit(_main(json.loads(sys.argv[1])))
