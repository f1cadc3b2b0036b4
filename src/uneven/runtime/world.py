"""This process's place among the workers: the only reader of the launcher's environment."""

import hashlib
import ipaddress
import json
import logging
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType

from uneven.errors import ConfigError
from uneven.runtime.frames import shorten
from uneven.runtime.slurm import as_torchrun

_log = logging.getLogger(__name__)

RUN_VARIABLE = "UNEVEN_RUN"
"""Set by ``uneven run``: the run directory, with the command line's settings and the journal."""

READY_VARIABLE = "UNEVEN_READY"  # Set to 1 by a launcher that waits for every worker's report that its training starts
WORLD_VARIABLE = "UNEVEN_WORLD"  # Set by ``uneven emulate`` to "emulated"; the journal records it

NODE_VARIABLE = "UNEVEN_NODE"
"""Set by ``uneven emulate``: the name of this worker's node, instead of the machine's name."""

ELASTIC_VARIABLE = "UNEVEN_ELASTIC"
"""Set by ``uneven run --elastic`` to MIN:MAX:SECONDS, the limits on the number of workers and the silence after which
one counts as failed, plus :ADDRESS of this machine if others take part. RANK is then a worker's number for life, and
WORLD_SIZE the number of workers at the start."""

LEAVE_VARIABLE = "UNEVEN_LEAVE_ON"
"""Set by ``uneven run --leave-on``: the name of a signal on which a worker leaves an elastic run as on SIGTERM."""

SITE_VARIABLE = "UNEVEN_SITE"
"""The site of this worker, for policies that use sites; by default each machine is a site. With commas, one for each
worker of this machine: ``UNEVEN_SITE=us,us,eu,eu``."""


SHARE_VARIABLE = "UNEVEN_SHARE"
"""Set by ``uneven run --shares`` and ``uneven emulate``: this worker's cores, which the journal records; with commas,
one entry per local worker."""


@dataclass(frozen=True, slots=True)
class Elastic:
    """The limits of an elastic run."""

    # least, most: workers at a time
    least: int
    most: int
    silence_s: float  # after which a worker counts as failed; 0 is never
    address: str | None = None  # of this machine for the others; None if all are on this one


@dataclass(frozen=True, slots=True)
class World:
    """This process among the workers."""

    rank: int = 0  # 0 … size−1
    size: int = 1
    local_rank: int = 0  # position among the workers of this machine; also its CUDA device
    local_size: int = 1
    host: str = "localhost"
    run_directory: Path | None = None  # for the journal, if the launcher gives one
    awaited: bool = False  # the launcher waits for a report that the training starts, see ``rundir.mark_ready``
    kind: str = "real"  # "real" or "emulated"
    site: str = "localhost"  # from UNEVEN_SITE, otherwise the host
    meeting: str = "127.0.0.1"  # the address of rank 0's machine, from the launcher
    port: int = 0  # of the rendezvous there; 0 if unknown
    stored: bool = False  # the launcher hosts the rendezvous store; otherwise rank 0 does
    # workers may leave and join; then ``rank`` is a number for life, and ``size`` the number at the start
    elastic: Elastic | None = None
    leave_on: tuple[int, ...] = ()  # signals besides SIGTERM on which a worker leaves an elastic run
    share: float | None = None  # cores to which the launcher limits it; None without a limit

    @property
    def alone(self) -> bool:
        """True if there is no other worker, now or later."""
        return self.size == 1 and self.elastic is None


def discover(environment: Mapping[str, str] | None = None) -> World:
    """Read the environment of torchrun, ``uneven run``, Ray Train or Slurm's ``srun``; by default a single process.
    Raises ConfigError for variables that contradict each other."""
    env = os.environ if environment is None else environment
    env = {**env, **as_torchrun(env)}
    run = env.get(RUN_VARIABLE)
    host = env.get(NODE_VARIABLE) or socket.gethostname()
    world = World(
        rank=_integer(env, "RANK", 0),
        size=_integer(env, "WORLD_SIZE", 1),
        local_rank=_integer(env, "LOCAL_RANK", 0),
        local_size=_integer(env, "LOCAL_WORLD_SIZE", 1),
        host=host,
        site=_site(
            env.get(SITE_VARIABLE) or host, _integer(env, "LOCAL_RANK", 0), _integer(env, "LOCAL_WORLD_SIZE", 1)
        ),
        run_directory=Path(run) if run else None,
        awaited=env.get(READY_VARIABLE) == "1",
        kind=env.get(WORLD_VARIABLE) or "real",
        meeting=env.get("MASTER_ADDR") or "127.0.0.1",
        port=_integer(env, "MASTER_PORT", 0),
        stored=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        elastic=_elastic(env.get(ELASTIC_VARIABLE)),
        leave_on=signals_named(env.get(LEAVE_VARIABLE) or "", LEAVE_VARIABLE),
        share=_share(env.get(SHARE_VARIABLE), _integer(env, "LOCAL_RANK", 0)),
    )
    if world.elastic is None and not 0 <= world.rank < world.size:
        raise ConfigError(
            f"RANK={world.rank} does not fit WORLD_SIZE={world.size}: start the script with torchrun or `uneven "
            "run`, or unset both to run one process"
        )
    if world.size > 1 and "MASTER_ADDR" not in env:
        raise ConfigError(
            f"WORLD_SIZE={world.size} but MASTER_ADDR is not set: start the script with torchrun or `uneven run`"
        )
    return world


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # another name


def signals_named(text: str, where: str) -> tuple[int, ...]:
    """Return signals by their names, as in "USR1" or "SIGUSR1,SIGUSR2". Raises ConfigError, with the source ``where``,
    for an unknown signal or one that a process cannot handle."""
    found = []
    for word in filter(None, (one.strip().upper() for one in text.split(","))):
        name = word if word.startswith("SIG") else f"SIG{word}"
        if name not in signal.Signals.__members__ or name in ("SIGKILL", "SIGSTOP"):
            raise ConfigError(
                f"{where}={text}: {word} is not a signal that a process can handle; give one such as USR1"
            )
        found.append(int(signal.Signals[name]))
    return tuple(found)


@lru_cache(maxsize=1)
def report_failures() -> None:
    """Print an uncaught exception once for all workers of this machine that raise the same, from now on.

    An :class:`uneven.errors.UnevenError` shows the user's own lines only, see :func:`uneven.runtime.frames.shorten`.
    """
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        shorten(error)
        if advice := _way_out(error):
            error.add_note(advice)
        path, text = os.environ.get("TORCHELASTIC_ERROR_FILE"), "".join(traceback.format_exception(error))
        # For the launcher, with the time. When one worker fails, its peers fail a moment later because it is missing;
        # the times show which failure came first.
        if path:
            extra = {"error": kind.__name__, "timestamp": time.time(), "py_callstack": text}
            message = {"message": {"message": f"{kind.__name__}: {error}", "extraInfo": extra}}
            try:
                Path(path).write_text(json.dumps(message), encoding="utf-8")
                if _printed(Path(path), text):
                    return
            except OSError as problem:
                with suppress(OSError):
                    Path(path).unlink(missing_ok=True)  # the launcher fails on half a report
                _log.warning(f"could not write {path} for the launcher: {problem.strerror}")
        before(kind, error, error.__traceback__)

    sys.excepthook = hook


def _way_out(error: BaseException) -> str:
    """Return advice for frequent errors of scripts that were written for DistributedDataParallel."""
    codes = (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
    call = next((one.co_name for one in codes if one.co_filename.endswith("distributed_c10d.py")), "")
    if isinstance(error, AttributeError) and error.name == "module" and hasattr(error.obj, "named_parameters"):
        return "uneven: session.setup does not wrap the model, so write `model` instead of `model.module`"
    if call == "destroy_process_group":
        return (
            "uneven: session.close() has ended the process group that the session had made: leave out "
            "destroy_process_group(), or call it before session.close()"
        )
    if isinstance(error, RuntimeError) and call in ("all_gather", "all_gather_into_tensor", "gather", "all_to_all"):
        return (
            f"uneven: {call} needs tensors of one shape on all workers, and the workers' parts of a batch differ in "
            f"size: use all_gather_object, or pad all of them to the size max(session.shares)"
        )
    return ""


def _printed(error_file: Path, text: str) -> bool:
    """Return whether another worker of this machine has printed this text to the same console or file."""
    # torchrun makes a folder for each error file.
    folder = error_file.parent.parent if error_file.name == "error.json" else error_file.parent
    sink = os.fstat(2)
    digest = hashlib.sha256(f"{sink.st_dev} {sink.st_ino} {text}".encode("utf-8", "replace")).hexdigest()
    # The creation of a file is atomic, so exactly one worker prints.
    try:
        (folder / f"error-{digest[:16]}").touch(exist_ok=False)
    except FileExistsError:
        return True
    return False


def _elastic(text: str | None) -> Elastic | None:
    if not text:
        return None
    try:
        least, most, silence_s, *address = text.split(":", 3)
        return Elastic(int(least), int(most), float(silence_s), address[0] if address else None)
    except ValueError:
        raise ConfigError(f"{ELASTIC_VARIABLE}={text!r} is not MIN:MAX:SECONDS; start with `uneven run`") from None


def _site(text: str, local_rank: int, local_size: int) -> str:
    """Return this worker's site from a list with one for each worker of this machine, or one for all. Raises
    ConfigError if the list has a wrong length or an empty name."""
    names = [name.strip() for name in text.split(",")]
    if len(names) not in (1, local_size):
        raise ConfigError(
            f"{SITE_VARIABLE}={text!r} names {len(names)} sites, but this machine has {local_size} workers: give "
            "one, or one each"
        )
    name = names[local_rank if len(names) > 1 else 0]
    if not name:
        raise ConfigError(f"{SITE_VARIABLE}={text!r} has an empty name: give each worker of this machine a site")
    return name


def _share(text: str | None, local_rank: int) -> float | None:
    """Return this worker's cores from a list with one for each worker; None if the list is shorter."""
    shares = (text or "").split(",")
    if not text or local_rank >= len(shares):
        return None
    try:
        return float(shares[local_rank])
    except ValueError:
        raise ConfigError(
            f"{SHARE_VARIABLE}={text!r}: {shares[local_rank]!r} is not a number of cores; unset it"
        ) from None


def _integer(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r} is not a whole number; unset it or start with torchrun") from None
