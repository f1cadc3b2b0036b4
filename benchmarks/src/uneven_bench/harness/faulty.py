"""Cases with faults, drawn from a seed and played side by side, and what their results say."""

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from uneven.errors import ConfigError
from uneven_bench.harness.show import Progress

_LOOK_EVERY_S = 0.05
_SHOWN = 3000  # characters from the end of the output of a wrong run


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedCase:
    """A case that was played."""

    case: Any  # of a seed: ``number`` is its place, ``words`` say what happens
    struck: bool  # its faults happened
    wrong: tuple[str, ...]  # the errors
    took_s: float
    said: str  # the output of all launchers and workers


Case = TypeVar("Case")
Played = TypeVar("Played", bound=PlayedCase)


def summary(seed: int, played: Sequence[PlayedCase], kinds: Iterable[str]) -> dict[str, Any]:
    """Return the common keys: ``seed``, ``faults`` and ``right`` (numbers of cases), ``longest_s`` and ``kinds`` (the
    number of each)."""
    right, longest_s = sum(not one.wrong for one in played), max(one.took_s for one in played)
    counted = dict(sorted(Counter(kinds).items()))
    return {"seed": seed, "faults": len(played), "right": right, "longest_s": longest_s, "kinds": counted}


def wrong_ends(played: Iterable[PlayedCase]) -> list[dict[str, Any]]:
    """Return for each wrong end its ``number``, ``case``, what was ``wrong`` and the end of what it ``said``."""
    return [
        {"number": one.case.number, "case": one.case.words, "wrong": list(one.wrong), "said": one.said[-_SHOWN:]}
        for one in played
        if one.wrong
    ]


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
    """Play these in parallel, and return them in the order of the cases."""
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
