"""The run directory: what the launcher writes for the workers to read. Imports no torch.

``run.toml`` holds the settings that were asked for, layer by layer, strongest first::

    [[layer]]
    source = "command line"
    [layer.run]
    balance = "lb-bsp"

    [[layer]]
    source = "uneven.toml"
    [layer.run]
    seed = 7

The journal of each rank lies beside it.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from uneven.config import RunConfig, checked, from_toml, to_toml
from uneven.errors import ConfigError, ConflictError, JournalError, UnknownNameError, access
from uneven.tables import document, items, known, located, quoted, required, table, text

_UNFIT = re.compile(r"[^\w.+-]+")
"""What a script's name may hold and a directory that is printed and typed should not."""

_log = logging.getLogger("uneven.rundir")

Layers = dict[str, dict[str, Any]]
"""Where it was said → key → value, strongest first."""

COMMAND_LINE = "command line"
SETTINGS = "run.toml"
_LONGEST_NAME = 60
"""Characters in the name of a run directory, beside the time: each takes up to 4 of the 255 bytes of a file name."""

FILE = "uneven.toml"
"""Read from the working directory where nothing else is named."""


def new_path(target: str, now: datetime, parent: Path = Path("runs")) -> Path:
    """A directory that does not exist yet, named after the time and the script or module ``target``."""
    last = Path(target).name  # a script may have no suffix, and lie in a folder
    name = last.removesuffix(".py") if last.endswith(".py") else last.rpartition(".")[2] or last
    stem = f"{now:%Y-%m-%d-%H%M%S}-{_UNFIT.sub('_', name)[:_LONGEST_NAME]}"
    path, number = parent / stem, 1
    with access(f"look into {parent.absolute()}", JournalError):
        while path.exists():
            number += 1
            path = parent / f"{stem}-{number}"
    return path


def create(directory: Path, layers: Mapping[str, Mapping[str, Any]], *, shared: bool = False) -> None:
    """Make the directory and write the layers into it. An empty layer is left out.

    Args:
        shared: another machine of the same run may have made it a moment ago, on a disk that both see.

    Raises:
        ConfigError: a key or a value is wrong, or the directory holds a run already.
        ConflictError: the other machine was started with other settings.
        JournalError: it cannot be written.
    """
    text = "\n".join(_layer(source, values) for source, values in layers.items() if values)
    with access(f"write {directory / SETTINGS}", JournalError):
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with (directory / SETTINGS).open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            if shared and (directory / SETTINGS).is_file() and not (directory / "journal").exists():
                _compare(directory / SETTINGS, text)
                return
            raise ConfigError(
                f"{directory} holds a run already (or is a file): "
                f"name another directory with --run-dir, or leave it out"
            ) from None


def _compare(path: Path, text: str) -> None:
    """See that the machine that wrote ``path`` asked for the same."""
    other = _read(path).decode("utf-8", "replace")
    if other != text:
        raise ConflictError(
            f"{path} was written by another machine (or an earlier start) with other settings:\n{other or '(none)'}\n"
            f"this machine has:\n{text or '(none)'}\nstart every machine with the same options and uneven.toml, "
            f"or name another directory with --run-dir"
        )


def load_layers(run_directory: Path | None) -> Layers:
    """The launcher's settings; without a launcher, what ``uneven.toml`` in the working directory says.

    Raises:
        ConfigError: a file cannot be understood, naming it.
        JournalError: a file cannot be read.
    """
    if run_directory is None:
        return file_layer(None)
    path = run_directory / SETTINGS
    if not _is_file(path):
        return {}
    found = document(_read(path), str(path))
    layers: Layers = {}
    with located(str(path)):
        known(found, ["layer"])
        for layer in items(found.get("layer", []), table):
            source = text(required(layer, "source"))
            layers[source] = checked(table(required(layer, "run")), source)
    return layers


def file_layer(path: Path | None) -> Layers:
    """The settings in ``path``, or in ``uneven.toml`` of the working directory if there is one.

    Raises:
        UnknownNameError: it does not exist, offering the nearest one.
        ConfigError: it cannot be understood.
        JournalError: it cannot be read.
    """
    if path is None:
        path = Path(FILE)
        if not _is_file(path):
            return {}
    elif not _is_file(path):
        raise UnknownNameError("settings file", str(path), map(str, path.parent.glob("*.toml")))
    return {str(path): from_toml(_read(path), str(path))}


def mark_coming(run_directory: Path, rank: int) -> None:
    """Say that this worker will say when its training starts, with :func:`mark_ready`.

    A session says so as soon as it is made, if the launcher waits for it. Who says nothing counts as training from when
    it meets the others.
    """
    path = _mark("coming", run_directory, rank)
    with _spared(path, "the launcher may slow this worker down before it trains"):
        path.touch()


def is_coming(run_directory: Path, rank: int) -> bool:
    """Whether the worker has said that it will say when its training starts."""
    return _mark("coming", run_directory, rank).exists()


def mark_ready(run_directory: Path, rank: int) -> None:
    """Say that this worker has imported what it needs; a launcher that waits for it throttles it now.

    A session says so by itself when its loader is first iterated, if the launcher waits for it
    (:attr:`uneven.world.World.awaited`). On a full disk it cannot be said, which is logged and stops nobody.
    """
    path = _mark("ready", run_directory, rank)
    with _spared(path, "the launcher slows this worker down only when it has waited long enough"):
        path.touch()


def mark_through(run_directory: Path, rank: int) -> None:
    """Say that this worker's speed no longer matters; a launcher that throttled it lets it go on freely.

    For what comes after the part that is measured: evaluating and ending take ten times as long on a tenth of a core.
    """
    path = _mark("ready", run_directory, rank)
    with _spared(path, "the launcher does not let this worker go on freely"):
        path.unlink(missing_ok=True)


def is_ready(run_directory: Path, rank: int) -> bool:
    """Whether the worker is to be throttled: it is ready, and not yet through."""
    return _mark("ready", run_directory, rank).exists()


GIVES_UP_WITHIN_S = 10.0
"""After its time-out: a worker that waits for another asks who is missing, and ends by itself."""


class Expendable(NamedTuple):
    """Whether the others can do without a worker with an open session, as it has said.

    Attributes:
        stops: why they cannot go on without it; empty if they can.
        timeout_s: for how long it may do nothing before it counts as one that hangs.
        training: whether it is between its first batch and its last, where a policy may do without a worker. Before
            and after that workers meet, so a death stops them under any policy.
        idles: whether it may wait for something that is none of the run's business, a visitor or a download, once the
            others have ended; then only being stopped counts as hanging.
    """

    stops: str = ""
    timeout_s: float = RunConfig().timeout_s
    training: bool = True
    idles: bool = False


def mark_expendable(run_directory: Path, rank: int, mark: Expendable | None = None) -> None:
    """Tell the launcher whether the others can do without this worker from now on.

    Where it cannot be written (a full disk) nothing counts as said, which is logged: the death of a worker that has
    said nothing stops the others.
    """
    unfinished = run_directory / f"expendable-{rank}.part"
    with _spared(unfinished, f"the death of rank {rank} would end the others, too"):
        try:
            unfinished.write_text(json.dumps(mark or Expendable()), encoding="utf-8")
            unfinished.replace(_mark("expendable", run_directory, rank))
        except OSError:
            unfinished.unlink(missing_ok=True)
            clear_expendable(run_directory, rank)
            raise


def clear_expendable(run_directory: Path, rank: int) -> None:
    """From now on its death stops the others again, as that of any worker that has said nothing."""
    path = _mark("expendable", run_directory, rank)
    with _spared(path, f"the death of rank {rank} may pass for one that the others can do without"):
        path.unlink(missing_ok=True)


def expendable_of(run_directory: Path, rank: int) -> Expendable | None:
    """The worker's own :func:`mark_expendable`; None if it has said nothing."""
    try:
        return Expendable(*json.loads(_mark("expendable", run_directory, rank).read_bytes()))
    except FileNotFoundError:
        return None


@contextmanager
def _spared(path: Path, otherwise: str) -> Iterator[None]:
    """The training goes on where a mark cannot be made; ``otherwise`` says what that costs."""
    try:
        yield
    except OSError as error:
        _log.warning(
            "%s could not be written (%s): training goes on, but %s; make room there", path, error.strerror, otherwise
        )


def _mark(kind: str, run_directory: Path, rank: int) -> Path:
    return run_directory / f"{kind}-{rank}"


def _layer(source: str, values: Mapping[str, Any]) -> str:
    return f"[[layer]]\nsource = {quoted(source)}\n" + to_toml(values).replace("[run]", "[layer.run]", 1)


def _read(path: Path) -> bytes:
    with access(f"read {path}", JournalError):
        return path.read_bytes()


def _is_file(path: Path) -> bool:
    with access(f"look for {path}", JournalError):
        return path.is_file()
