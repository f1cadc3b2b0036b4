"""The specification of a launch. Imports no torch."""

import math
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from uneven.errors import ConfigError, UnknownNameError, access, nearest
from uneven.runtime.launch.output import WorkerOutput
from uneven.runtime.throttle.share_rule import ShareRule
from uneven.runtime.world import is_loopback, signals_named

_MOST = 100_000  # workers or machines; more is a typing error

_COUNTS = ("auto", "cpu", "gpu")
_MEETINGS = ("static", "c10d")
DEFAULT_PORT = 29500  # torchrun's


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The workers to start, in ``torchrun``'s words; invalid or contradicting values raise ConfigError."""

    target: tuple[str, ...]
    module: bool = False
    # Workers on this machine, or "gpu", "cpu", "auto" for one per device; None: one per share, or GPU, or one.
    nproc: str | None = None
    nnodes: str = "1"  # machines, "N" or "MIN:MAX"
    node_rank: int = 0
    rdzv_backend: str | None = None  # standalone on one machine, "static" with several
    rdzv_endpoint: str = ""
    rdzv_id: str = ""
    master_addr: str = "127.0.0.1"
    master_port: int | None = None
    local_addr: str | None = None
    standalone: bool = False
    max_restarts: int = 0
    shares: tuple[float, ...] = ()  # of each local rank, in cores; empty means no limit
    throttle_period_s: float = 0.02  # of a throttled worker's run-and-stop cycle; shorter is smoother and costs more
    # Throttle a worker only when its training starts: at the first use of its session's loader, at
    # ``rundir.mark_ready``, or without a session when it connects to the others.
    wait_ready: bool = False
    ready_within_s: float = math.inf  # throttle it after this time in any case
    elastic: str | None = None  # minimum and maximum number of workers, which may leave and join, "MIN:MAX"
    silence_s: float = 10.0  # without a heartbeat after which such a worker counts as dead; 0 is never
    join: str | None = None  # HOST:PORT of an elastic run that these workers join
    leave_on: str = ""  # names of signals on which workers of an elastic run leave, as on SIGTERM
    output: WorkerOutput = field(default_factory=WorkerOutput)

    def __post_init__(self) -> None:
        if not self.target:
            raise ConfigError("nothing to run: name a script, for instance `uneven run train.py`")
        script = Path(self.target[0])
        with access(f"look for the script {script}"):
            if not self.module and not script.is_file():
                near = nearest(script.name, (one.name for one in script.parent.glob("*.py")))
                hint = f"; did you mean {script.with_name(near)}?" if near else ""
                raise ConfigError(f"no such file: {script}{hint}")
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

        self._check_elastic()

    def _check_elastic(self) -> None:
        if self.join is not None and self.elastic is not None:
            raise ConfigError(
                "--join with --elastic: the run that is joined sets the number of workers; leave --elastic out"
            )
        check_silence(self.silence_s)
        if self.join is not None:
            address(self.join, f"--join {self.join}")
        if self.members_change and (self.nodes != (1, 1) or self.rdzv_backend):
            raise ConfigError("--elastic starts workers on this machine; start more elsewhere with --join HOST:PORT")
        if signals_named(self.leave_on, "--leave-on") and not self.members_change:
            raise ConfigError(
                f"--leave-on {self.leave_on}: only runs with --elastic or --join let workers leave; leave it out"
            )
        if self.output.asked and self.members_change:
            raise ConfigError(
                "--redirects, --tee, --log-rank and --log-dir do not work with --elastic and --join: leave them out"
            )
        least, most = self.bounds
        if self.nproc is not None and self.nproc.isdigit() and self.elastic and not least <= int(self.nproc) <= most:
            raise ConfigError(f"--nproc {self.nproc} with --elastic {self.elastic}: give {least} to {most}")

    @property
    def line(self) -> list[str]:
        """The command line of a worker: program and arguments."""
        return [sys.executable, "-u", *(["-m"] if self.module else []), *self.target]

    @property
    def members_change(self) -> bool:
        """True if workers may leave and join."""
        return self.elastic is not None or self.join is not None

    @property
    def bounds(self) -> tuple[int, int]:
        return bounds_of(self.elastic or "1")

    @property
    def meeting(self) -> tuple[str, int]:
        """The host and port where the store of an elastic run listens; port 0 is any free port."""
        if self.alone:
            return self.local_addr or "127.0.0.1", 0
        host, _, port = self.endpoint.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def nodes(self) -> tuple[int, int]:
        first, _, last = self.nnodes.partition(":")
        least = _positive("--nnodes", first, "or MIN:MAX")
        return least, _positive("--nnodes", last, "or MIN:MAX") if last else least

    @property
    def endpoint(self) -> str:
        """The given rendezvous endpoint, or the address of the first machine; host:port."""
        return self.rdzv_endpoint or f"{self.master_addr}:{self.master_port or DEFAULT_PORT}"

    @property
    def backend(self) -> str:
        """torch's name of the kind of rendezvous."""
        return self.rdzv_backend or "static"

    @property
    def rendezvous_endpoint(self) -> str:
        """The address where launchers meet; empty is torch's default."""
        return self.endpoint if self.backend == "static" else self.rdzv_endpoint

    @property
    def here(self) -> tuple[str, int] | None:
        """The host and port of the rendezvous if only workers of this machine take part; port 0 is any free port."""
        if self.alone:
            return self.local_addr or "127.0.0.1", 0
        host, _, port = self.endpoint.rpartition(":")
        host = host.strip("[]")
        if self.nodes[1] > 1 or self.local_addr or not port.isdigit() or not is_loopback(host):
            return None
        return host, int(port)

    @property
    def alone(self) -> bool:
        """True if this launcher is the only one and any free port will do."""
        named = self.rdzv_backend or self.rdzv_endpoint or self.master_port
        return self.standalone or (self.nodes[1] == 1 and not named)


def bounds_of(elastic: str) -> tuple[int, int]:
    """Return the minimum and maximum number of workers of ``--elastic MIN:MAX``; raise ConfigError if invalid."""
    first, _, last = elastic.partition(":")
    least, most = (_positive("--elastic", one, "as MIN:MAX") for one in (first, last or first))
    if least > most:
        raise ConfigError(f"--elastic {elastic}: the least number comes first, as in {most}:{least}")
    return least, most


def check_silence(silence_s: float) -> None:
    """Raise ConfigError if the limit of ``--silence``, in seconds, is negative or not a number."""
    # Not `silence_s < 0.0`, which is false for NaN.
    if not silence_s >= 0.0:
        raise ConfigError(f"--silence {silence_s}: give seconds, 0 for never")


def run_id(launch: Launch) -> str:
    """Return the name under which the launchers of a run find each other; a random one if there is only one."""
    return str(uuid.uuid4()) if launch.alone else launch.rdzv_id or "none"


def address(text: str, what: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT`` (IPv6 in brackets); raise ConfigError, which begins with ``what``."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        raise ConfigError(f"{what} is not an address: write it as HOST:PORT, for instance 127.0.0.1:{DEFAULT_PORT}")
    return host.strip("[]"), int(port)


def _positive(option: str, text: str, alternative: str) -> int:
    short = text.isascii() and text.isdigit() and len(text) <= len(str(_MOST))
    if not (short and 0 < int(text) <= _MOST):
        raise ConfigError(f"{option} {text}: it must be a positive number of at most {_MOST:,}, {alternative}")
    return int(text)
