"""What a change of code is, and what a start does about it."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from uneven.errors import CheckpointError
from uneven.runtime.jobs.begun import FILE, DefaultFolder, LockedRun, folder_for
from uneven.runtime.jobs.code import Code, code_of
from uneven.runtime.jobs.processes import import_path

FILES = {
    "mine.py": '''
import functools
import helper

RATE = 0.1

class Net:
    """A network."""
    width = 4
    def forward(self, x):
        return helper.act(x)

@functools.lru_cache
def step(x, scale=2):
    return x * scale

def repeated(times):
    def outer(function):
        @functools.wraps(function)
        def inner(*arguments):
            return [function(*arguments) for _ in range(times)]
        return inner
    return outer

@repeated(3)
def train(trial):
    """Train."""
    from lazy import later
    if trial in {"a", "b", "c"}:
        return RATE
    return step(Net().forward(trial))

def unused():
    return 1
''',
    "helper.py": "def act(x):\n    return x\n",
    "lazy.py": "from lazier import most\ndef later():\n    return 1\n",
    # Above 255 names, arguments of bytecode take a step of their own.
    "lazier.py": "most = 3\n" + "".join(f"n{one} = {one}\n" for one in range(300)) + "import functools\n",
}
INNER = "function mine.repeated.<locals>.outer.<locals>.inner"


def written(folder: Path, old: str = "", new: str = "") -> Code:
    for name, text in FILES.items():
        (folder / name).write_text(text.replace(old, new) if old else text)
        sys.modules.pop(name.removesuffix(".py"), None)
    importlib.invalidate_caches()
    train = importlib.import_module("mine").train
    return code_of({"train": train}, train)


def changed(one: Code, other: Code) -> list[str]:
    names = {*one["train"], *other["train"]}
    return sorted(name for name in names if one["train"].get(name) != other["train"].get(name))


def test_each_change_is_named_and_what_changes_nothing_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = written(tmp_path)
    for old, new, expected in (
        ("RATE = 0.1", "RATE = 0.2", ["mine.RATE"]),
        ("width = 4", "width = 5", ["class mine.Net"]),
        ("helper.act(x)", "helper.act(-x)", ["function mine.Net.forward"]),
        ("return x\n", "return 2 * x\n", ["function helper.act"]),
        ("scale=2", "scale=3", ["function mine.step"]),
        ('"c"}', '"d"}', ["function mine.train"]),
        ("@repeated(3)", "@repeated(4)", [INNER]),
        ("range(times)", "range(times + 1)", [INNER]),
        ("most = 3", "most = 4", ["module lazier"]),
        ("def later():\n    return 1", "def later():\n    return 2", ["module lazy"]),
        ("return RATE", "return unused()", ["function mine.train", "function mine.unused", "mine.RATE"]),
        ('"""Train."""', '"""Train it."""', []),
        ('"""A network."""', "# a comment\n", []),
        ("\ndef unused():\n    return 1", "\n\ndef unused():\n    return 2", []),
    ):
        assert changed(before, written(tmp_path, old, new)) == expected, new
    again = "import json, mine; from uneven.runtime.jobs.code import code_of\n"
    again += "print(json.dumps(code_of({'train': mine.train})))"
    written(tmp_path)
    path = os.pathsep.join([str(tmp_path), import_path()])
    said = subprocess.check_output([sys.executable, "-c", again], env={**os.environ, "PYTHONPATH": path})
    assert json.loads(said) == before  # in a process with another seed of its hashes


class Holder:
    def __init__(self, held: object) -> None:
        self.held, self.lock, self.itself = held, threading.Lock(), self


def test_values_count_by_what_they_hold() -> None:
    weights = torch.arange(10_000).bfloat16()
    makers: list[Callable[[int], object]] = [
        lambda change: partial(print, 1, sep=str(change)), lambda change: {"a", "b", f"c{change}"},
        lambda change: weights.clone() + change, lambda change: np.full((3, 4), change), lambda change: Holder(change),
        lambda change: [object(), change], lambda change: Path(f"x{change}"), lambda change: torch.tensor(change),
        lambda change: [np.random.default_rng(), change], lambda change: "x" * 10**6 + str(change),
        lambda change: [0] * (10**6 + change), lambda change: lambda: change,
    ]  # fmt: skip
    for make in makers:
        values = [make(0), make(0), make(1)]  # all three live, so none has the address of another
        one, same, other = (code_of({"it": value}) for value in values)
        assert one == same, make(0)
        assert one != other, make(0)


def test_code_that_has_changed_is_refused_or_gets_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    old: Code = {"train": {"train": "1", "m.RATE": "1"}, "data": {"data": "1"}}
    new: Code = {**old, "train": {"train": "1", "m.RATE": "2"}}
    default = DefaultFolder("runs/it")
    first = folder_for(default, "search", old)
    first.mkdir(parents=True)
    begun = LockedRun(first, "search", old, ())
    assert folder_for(default, "search", new) == first  # it has not finished: no second one is begun by mistake
    with pytest.raises(CheckpointError, match=r"has not finished, and its code has changed since \(m.RATE\).*delete"):
        LockedRun(first, "search", new, new)
    assert not LockedRun(first, "search", new, ["data"]).report_finished()  # of what has changed nothing was trained
    (first / FILE).unlink()
    begun = LockedRun(first, "search", old, old)
    begun.finish(trials=3)
    assert not LockedRun(first, "search", old, old).report_finished(trials=4)
    assert LockedRun(first, "search", old, old).report_finished(trials=3)
    assert "the search in runs/it finished on 20" in caplog.text
    assert folder_for("runs/it", "search", new) == first  # named, so it is refused
    with pytest.raises(CheckpointError, match=r"finished on 20.*changed"):
        LockedRun(first, "search", new, new)
    assert folder_for(default, "search", new) == Path("runs/it-2")
    assert "with other code (m.RATE changed); this one uses runs/it-2" in caplog.text
    assert folder_for(default, "search", old) == first
    (first / FILE).write_text('{"code": 3}')
    with pytest.raises(CheckpointError, match=r"code\.json"):
        folder_for(default, "search", old)
