"""A process of :mod:`uneven_bench.forked.scripts`, which runs a program as a fresh Python would, real hooks and exit
included."""

import gc
import importlib.util
import io
import json
import multiprocessing.process
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Mapping
from types import CodeType, ModuleType
from typing import Any

_filters = list(warnings.filters)

_ended: list[BaseException | None] = []  # the exception that ended the program, or None, once it has ended


def main(task: int) -> None:
    """Read the task, a JSON dictionary, from the file with this descriptor, and run it."""
    with open(task, encoding="utf-8") as file:
        given: dict[str, Any] = json.load(file)
    become(given["program"], given["directory"], given["environment"], given["path"])


def become(program: list[str], directory: str, environment: Mapping[str, str], path: list[str]) -> None:
    """Run the program ``python PROGRAM…``. ``path`` follows its folder and ``PYTHONPATH`` in ``sys.path``."""
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # reads the environment again
    os.chdir(directory)
    multiprocessing.process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]  # where its children look
    _open_streams()
    _forget_what_others_drew()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    try:
        exec(_program(program, path, module), vars(module))
        _ended.append(None)
    except BaseException as error:
        _ended.append(error)
        raise


def leave() -> None:
    """End the process as the interpreter would after the last exit handler, but do not free torch."""
    if not _ended:
        return  # another kind of process
    try:
        for file in (*filter(_writes, gc.get_objects()), sys.stdout, sys.stderr):
            file.flush()
    except (OSError, ValueError):
        return  # the interpreter will find the same, and report it
    match _ended[0]:
        case None:
            os._exit(0)
        case SystemExit(code=code):
            os._exit(code & 0xFF if isinstance(code, int) else code is not None)
        case KeyboardInterrupt():
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        case _:
            os._exit(1)


def _writes(one: object) -> bool:
    """Return whether it is an open file, with possibly unwritten data."""
    return type(one) in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom) and not one.closed  # type: ignore[attr-defined]


def _program(words: list[str], path: list[str], module: ModuleType) -> CodeType:
    """Return the code of ``python WORDS…``, and prepare ``sys.argv``, ``sys.path`` and its module."""
    first, *rest = words
    sys.path[:] = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *path]
    if first == "-c":
        sys.argv[:], sys.path[:0] = ["-c", *rest[1:]], [""]
        return compile(rest[0], "<string>", "exec")
    if first == "-m":
        sys.path[:0] = [os.getcwd()]
        spec = importlib.util.find_spec(rest[0])
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{rest[0]}.__main__")
        if spec is None or spec.loader is None or spec.origin is None:
            raise ModuleNotFoundError(f"no module that can be run is named {rest[0]}")
        module.__spec__, module.__loader__, module.__package__ = spec, spec.loader, spec.parent
        sys.argv[:], module.__file__ = [spec.origin, *rest[1:]], spec.origin
        code = spec.loader.get_code(spec.name)  # type: ignore[attr-defined]  # every loader of files has it
        assert isinstance(code, CodeType)
        return code
    sys.argv[:], sys.path[:0] = words, [os.path.dirname(os.path.abspath(first))]
    module.__file__ = os.path.abspath(first)
    with open(first, "rb") as file:
        return compile(file.read(), first, "exec")


def _open_streams() -> None:
    """Open new streams on this process's files: the parent's know another kind of file."""
    before = sys.__stdout__
    assert before is not None
    code, errors = before.encoding, before.errors or "strict"  # as the locale says
    sys.stdin = open(0, encoding=code, errors=errors, closefd=False)  # noqa: SIM115  # for good
    sys.stdout = _writer(1, code, errors, lines=os.isatty(1))
    sys.stderr = _writer(2, code, "backslashreplace", lines=True)
    vars(sys).update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)


def _writer(descriptor: int, code: str, errors: str, *, lines: bool) -> io.TextIOWrapper:
    raw = io.FileIO(descriptor, "w", closefd=False)
    if os.environ.get("PYTHONUNBUFFERED"):
        return io.TextIOWrapper(raw, code, errors, write_through=True)
    return io.TextIOWrapper(io.BufferedWriter(raw), code, errors, line_buffering=lines)


def _forget_what_others_drew() -> None:
    """Reset what the parent has changed, and what torch and numpy read from environment or system at their import."""
    import numpy
    import torch

    warnings.resetwarnings()
    vars(warnings)["filters"] += _filters
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1))
    numpy.random.seed()
