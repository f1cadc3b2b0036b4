"""``uneven bench faults``: workers, launchers and shards of real runs are killed, stopped and made to fail.

A seed and a number draw each case (:mod:`uneven_bench.faults.cases`): a policy, a kind of fault, its victim and its
moment. The judge checks the end of the run: in time, with the right exit code and the name of the culprit, without
processes or files left over; after a checkpoint, also that resumed workers use every sample once.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from uneven.errors import ConfigError
from uneven_bench.faults.cases import draw
from uneven_bench.faults.play import play
from uneven_bench.harness.show import Progress

FAULTS, FEW = 200, 16
SEED = 28

_LOOK_EVERY_S = 0.05
_SHOWN = 1500  # characters from the end of the output of a failed run


class Judged(Protocol):
    """A case that was played."""

    @property
    def wrong(self) -> Sequence[str]: ...


Case = TypeVar("Case")
Played = TypeVar("Played", bound=Judged)


def run(quick: bool, progress: Progress, seed: int | None = None, only: str | None = None) -> dict[str, Any]:
    """Play 200 faults, some at a time; with ``quick``, 16. ``seed``: draws the cases; ``only``: the number of one case,
    or "K-L" for several in a row. Result: ``seed``, ``faults``, ``right`` (the number with the right end), ``resumed``,
    ``missed`` (the culprit never came to its step), ``longest_s``, ``kinds`` (the number of each), and ``wrong``: for
    each wrong end its ``number``, ``case``, what was ``wrong`` and the end of what it ``said``. Raises ConfigError:
    there are no such cases."""
    seed = SEED if seed is None else seed
    numbers = range(FEW if quick else FAULTS) if only is None else numbers_of(only)
    played = play_all([draw(seed, number) for number in numbers], progress, play)
    bad = [one for one in played if one.wrong]
    return {
        "seed": seed,
        "faults": len(played),
        "right": len(played) - len(bad),
        "resumed": sum(one.resumed for one in played),
        "missed": [one.case.number for one in played if not one.struck and one.case.kind != "none"],
        "longest_s": max(one.took_s for one in played),
        "kinds": dict(sorted(Counter(one.case.kind for one in played).items())),
        "wrong": [
            {"number": one.case.number, "case": one.case.words, "wrong": list(one.wrong), "said": one.said[-_SHOWN:]}
            for one in bad
        ],
    }


def numbers_of(only: str) -> range:
    """Return the cases of "K" or "K-L". Raises ConfigError: it is neither."""
    first, dash, last = only.partition("-")
    last = last if dash else first
    if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise ConfigError(f"--only {only}: cases are numbered from 0, for instance --only 17, or --only 100-149")
    return range(int(first), int(last) + 1)


def play_all(
    cases: Sequence[Case], progress: Progress, play: Callable[[Case, Path], Generator[None, None, Played]]
) -> list[Played]:
    """Play these in parallel, and return them in the order of the cases. Each result has what was ``wrong``."""
    waiting = list(enumerate(cases))[::-1]
    playing: dict[int, Generator[None, None, Played]] = {}
    played: dict[int, Played] = {}
    with tempfile.TemporaryDirectory(prefix="uneven-faults-") as parent:
        try:
            while waiting or playing:
                # A case mostly waits, for a time-out or a launcher, so more cases than cores keep the processors
                # busy.
                while waiting and len(playing) < _side_by_side():
                    place, case = waiting.pop()
                    folder = Path(parent) / str(place)
                    folder.mkdir()
                    playing[place] = play(case, folder)
                for place, one in list(playing.items()):
                    try:
                        next(one)
                    except StopIteration as end:
                        played[place] = end.value
                        del playing[place]
                        shutil.rmtree(Path(parent) / str(place))
                wrong = sum(bool(one.wrong) for one in played.values())
                progress("fault", f"{len(played)} of {len(cases)}, {wrong} wrong", len(played) / len(cases))
                time.sleep(_LOOK_EVERY_S)
        finally:
            for one in playing.values():
                one.close()
    return [played[place] for place in range(len(cases))]


def _side_by_side() -> int:
    return (os.cpu_count() or 1) + 2
