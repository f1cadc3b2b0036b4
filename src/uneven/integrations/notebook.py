"""Run a function of a notebook on several workers.

The workers are new processes, which get the function through a private folder, packed by cloudpickle. A fork of the
notebook's process would have its locks and its GPU, and hang in OpenMP, whose threads it lacks.
"""

import codecs
import io
import os
import pickle
import shlex
import subprocess
import sys
from collections import ChainMap
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch

from uneven.errors import ConfigError, LaunchError
from uneven.run.session import Session
from uneven.runtime.installed import need
from uneven.runtime.jobs import Command, How
from uneven.runtime.jobs.processes import import_path
from uneven.runtime.temp_dir import TemporaryFolder
from uneven.runtime.world import discover

_TASK, _RESULT = "task", "result"  # files of the folder that both sides know
_OUTPUT_BYTES = 65_536

T = TypeVar("T")


def notebook_launch(function: Callable[..., T], args: tuple[Any, ...] = (), *, nproc: int = 2, options: str = "") -> T:
    """Run ``function(*args)`` on ``nproc`` workers of this machine, and return the result of rank 0::

        def train():
            with uneven.Session() as session: ...
            return model.state_dict()

        weights = uneven.notebook_launch(train, nproc=4, options="--shares 0.6,0.4,0.2,0.1")

    It starts ``uneven run``, shows its output, and ends all workers if the cell is interrupted. The function may use
    names of the notebook: each worker gets a copy of their values.

    Args:
        options: further options of ``uneven run``, as in a command line.

    Raises:
        ConfigError: the function, an argument or the result cannot be sent to another process, because it uses an open
            session, a tensor on a GPU, a lock or the like; or this process is a worker.
        LaunchError: a worker failed; the output shows why.
    """
    need("notebook", "cloudpickle")
    name = getattr(function, "__name__", repr(function))
    world = discover()
    if world.run_directory is not None or not world.alone:
        raise ConfigError(f"notebook_launch({name}): this process is worker {world.rank} of a run: call {name} itself")
    task = pickle.dumps((sys.path, name, _packed(name, (function, args))))
    folder = TemporaryFolder("uneven-notebook-")
    try:
        (folder.path / _TASK).write_bytes(task)
        line = [sys.executable, "-m", "uneven", "run", "--nproc", str(nproc), *shlex.split(options)]
        code = _shown([*line, "-m", __name__, str(folder.path)])
        if code:
            raise LaunchError(f"notebook_launch({name}): the run ended with exit code {code}; see its output", code)
        result = folder.path / _RESULT
        if not result.exists():
            raise LaunchError(f"notebook_launch({name}): rank 0 left the run without a result")
        return pickle.loads(result.read_bytes())  # noqa: S301  # from our own worker
    finally:
        folder.remove()


def _shown(line: list[str]) -> int:
    """Run a command, show its output here, and return its exit code; an interrupt ends it."""
    ours, theirs = os.pipe()
    environment = {**os.environ, "PYTHONPATH": import_path()}
    try:
        command = Command("launcher", line, env=environment, stdout=theirs, stderr=subprocess.STDOUT)
    finally:
        os.close(theirs)
    with command, open(ours, "rb", buffering=0) as output:
        try:
            _show(output)
        except KeyboardInterrupt:
            command.ask_to_end()
            _show(output)  # the launcher ends its workers and sums the run up
            raise
        ending = command.wait()
    assert ending is not None
    return 0 if ending.how is How.ENDED else ending.code or 1


def _show(output: io.FileIO) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while some := output.read(_OUTPUT_BYTES):
        sys.stdout.write(decoder.decode(some))  # not this process's descriptor, which older notebooks do not show
        sys.stdout.flush()


def _packed(name: str, value: object) -> bytes:
    """Return a value as bytes for another process; raise ConfigError if that is impossible."""
    import cloudpickle

    def session(_: Session) -> Any:
        raise ConfigError(f"{name} uses a session of this process: make the session inside of {name}")

    def tensor(one: torch.Tensor) -> Any:
        if one.device.type == "cpu":
            return one.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        raise ConfigError(
            f"{name} uses a tensor on {one.device}, and each worker has another device: send it with .cpu(), or make "
            f"it inside of {name}"
        )

    class Pickler(cloudpickle.Pickler):
        dispatch_table: ClassVar = ChainMap(
            {Session: session, torch.Tensor: tensor, torch.nn.Parameter: tensor}, cloudpickle.Pickler.dispatch_table
        )

    file = io.BytesIO()
    try:
        Pickler(file).dump(value)
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise ConfigError(
            f"{name} cannot be sent to another process ({error}): make inside of {name} what it uses"
        ) from error
    return file.getvalue()


def _work(folder: Path) -> None:
    """Run the function in a worker."""
    path, name, packed = pickle.loads((folder / _TASK).read_bytes())  # noqa: S301  # a file of this user
    sys.path[:] = path
    function, args = pickle.loads(packed)  # noqa: S301
    result = function(*args)
    if discover().rank == 0:
        (folder / _RESULT).write_bytes(_packed(f"the result of {name}", result))


if __name__ == "__main__":
    _work(Path(sys.argv[1]))
