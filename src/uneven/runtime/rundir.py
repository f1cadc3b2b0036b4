"""The run directory: files from the launcher to the workers, and back. Imports no torch.

``run.toml`` has the given settings, layer by layer, the strongest first::

    [[layer]]
    source = "command line"
    [layer.run]
    balance = "lb-bsp"

    [[layer]]
    source = "uneven.toml"
    [layer.run]
    seed = 7

The journals of the ranks are in a folder next to it.
"""

import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from uneven.errors import ConfigError, ConflictError, JournalError, UnknownNameError, access
from uneven.policy.core.run_config import RunConfig, checked, from_toml, to_toml
from uneven.policy.core.tables import document, items, known, located, quoted, required, table, text

_UNFIT = re.compile(r"[^\w.+-]+")  # Characters of a script's name that do not fit a directory that is printed and typed

_log = logging.getLogger(__name__)

Layers = dict[str, dict[str, Any]]  # the settings: source → key → value, the strongest source first

COMMAND_LINE = "command line"
SETTINGS = "run.toml"
_LONGEST_NAME = 60
"""The characters of a run directory's name after the time: each takes up to 4 of the 255 bytes of a file name."""

FILE = "uneven.toml"  # the default settings file, in the working directory


def new_path(target: str, now: datetime, parent: Path = Path("runs")) -> Path:
    """Return a path that does not exist yet, named after the time and the script or module ``target``."""
    last = Path(target).name  # a script may have no suffix, and be in a folder
    name = last.removesuffix(".py") if last.endswith(".py") else last.rpartition(".")[2] or last
    stem = f"{now:%Y-%m-%d-%H%M%S}-{_UNFIT.sub('_', name)[:_LONGEST_NAME]}"
    path, number = parent / stem, 1
    with access(f"look into {parent.absolute()}", JournalError):
        while path.exists():
            number += 1
            path = parent / f"{stem}-{number}"
    return path


def create(
    directory: Path, layers: Mapping[str, Mapping[str, Any]], *, shared: bool = False, joins: bool = False
) -> None:
    """Make the directory and write the layers, except empty ones. If ``shared``, another machine may have made it; if
    ``joins``, its run may have begun.

    Raises:
        ConfigError: a wrong key or value, or the directory has a run already.
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
            fits = joins or (shared and not (directory / "journal").exists())
            if fits and (directory / SETTINGS).is_file():
                _compare(directory / SETTINGS, text)
                return
            raise ConfigError(
                f"{directory} already has a run (or is a file): name another directory with --run-dir, or leave it out"
            ) from None


def _compare(path: Path, text: str) -> None:
    other = _read(path).decode("utf-8", "replace")
    if other != text:
        raise ConflictError(
            f"{path} was written by another machine (or an earlier start) with other settings:\n{other or '(none)'}\n"
            f"this machine has:\n{text or '(none)'}\nstart every machine with the same options and uneven.toml, "
            f"or name another directory with --run-dir"
        )


def load_layers(run_directory: Path | None) -> Layers:
    """Return the launcher's settings; without a launcher, those of ``uneven.toml`` in the working directory. Raises
    ConfigError for an invalid file, JournalError for an unreadable one."""
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
    """Return the settings in ``path``, or in ``uneven.toml`` of the working directory if it exists. Raises
    UnknownNameError for a missing file, ConfigError for an invalid one, JournalError for an unreadable one."""
    if path is None:
        path = Path(FILE)
        if not _is_file(path):
            return {}
    elif not _is_file(path):
        raise UnknownNameError("settings file", str(path), map(str, path.parent.glob("*.toml")))
    return {str(path): from_toml(_read(path), str(path))}


def mark_coming(run_directory: Path, rank: int) -> None:
    """Announce that this worker will call :func:`mark_ready` when its training starts. A session does so when it is
    made, if the launcher waits for it. A worker without the mark counts as training from its rendezvous on."""
    path = _mark("coming", run_directory, rank)
    with _spared(path, "the launcher may slow this worker down before it trains"):
        path.touch()


def is_coming(run_directory: Path, rank: int) -> bool:
    return _mark("coming", run_directory, rank).exists()


def mark_ready(run_directory: Path, rank: int) -> None:
    """Report that this worker has imported its modules; a launcher that waits for it starts to throttle it. A session
    does so when its loader is first iterated (see :attr:`uneven.runtime.world.World.awaited`)."""
    path = _mark("ready", run_directory, rank)
    with _spared(path, "the launcher slows this worker down only when it has waited long enough"):
        path.touch()


def is_ready(run_directory: Path, rank: int) -> bool:
    """Return whether the worker has reported that its training starts, so that it must be throttled."""
    return _mark("ready", run_directory, rank).exists()


def clear_begun(run_directory: Path, rank: int) -> None:
    """Remove the reports of an earlier process with this rank: a new one has not begun."""
    for kind in ("coming", "ready"):
        path = _mark(kind, run_directory, rank)
        with _spared(path, "the launcher may slow this worker down before it trains"):
            path.unlink(missing_ok=True)


GIVES_UP_WITHIN_S = 10.0
"""The time after its time-out in which a worker that waits for another finds the missing one, and ends."""


class Expendable(NamedTuple):
    """A worker's report whether the others can continue without it while its session is open."""

    stops: str = ""  # why they cannot continue without it; empty if they can
    timeout_s: float = RunConfig().timeout_s  # inactivity after which it counts as hanging
    # it is between its first batch and its last; a policy may do without a worker then. Before and after that
    # workers meet, so a death stops them under any policy.
    training: bool = True
    # it may wait for something outside the run (a user, a download) after the others have ended; then only a
    # stopped process counts as hanging
    idles: bool = False


def mark_expendable(run_directory: Path, rank: int, mark: Expendable | None = None) -> None:
    """Report to the launcher whether the others can continue without this worker from now on. If that cannot be
    written, the
    mark is removed: a death without a mark stops the others."""
    unfinished = run_directory / f"expendable-{rank}.part"
    with _spared(unfinished, f"the death of rank {rank} would end the others, too"):
        try:
            # Write a new file and rename it, because the launcher must never read half a mark.
            unfinished.write_text(json.dumps(mark or Expendable()), encoding="utf-8")
            unfinished.replace(_mark("expendable", run_directory, rank))
        except OSError:
            unfinished.unlink(missing_ok=True)
            clear_expendable(run_directory, rank)
            raise


def clear_expendable(run_directory: Path, rank: int) -> None:
    """Remove the mark, so that this worker's death stops the others again."""
    path = _mark("expendable", run_directory, rank)
    with _spared(path, f"the death of rank {rank} may pass for one that the others can do without"):
        path.unlink(missing_ok=True)


def expendable_of(run_directory: Path, rank: int) -> Expendable | None:
    """Return the worker's :func:`mark_expendable`; None without one."""
    try:
        return Expendable(*json.loads(_mark("expendable", run_directory, rank).read_bytes()))
    except FileNotFoundError:
        return None


@contextmanager
def _spared(path: Path, otherwise: str) -> Iterator[None]:
    """Continue the training if a mark cannot be written; ``otherwise`` describes the consequence."""
    try:
        yield
    except OSError as error:
        _log.warning(
            "%s could not be written (%s): training continues, but %s; free some space there",
            path,
            error.strerror,
            otherwise,
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
