"""``uneven bench faults``: workers, launchers and shards of real runs are killed, stopped and made to fail.

A seed and a number draw each case (:mod:`uneven_bench.faults.cases`): a policy, a kind of fault, its victim and its
moment. The judge checks the end of the run: in time, with the right exit code and the name of the culprit, without
processes or files left over; after a checkpoint, also that resumed workers use every sample once.
"""

from typing import Any

from uneven_bench.faults.cases import draw
from uneven_bench.faults.play import play
from uneven_bench.harness.faulty import numbers_of, play_all, summary, wrong_ends
from uneven_bench.harness.show import Progress

FAULTS, FEW = 200, 16
SEED = 28


def run(quick: bool, progress: Progress, seed: int | None = None, only: str | None = None) -> dict[str, Any]:
    """Play 200 faults, some at a time; with ``quick``, 16. ``seed``: draws the cases; ``only``: the number of one case,
    or "K-L" for several in a row. Result: ``seed``, ``faults``, ``right`` (the number with the right end), ``resumed``,
    ``missed`` (the culprit never came to its step), ``longest_s``, ``kinds`` (the number of each), and ``wrong``: for
    each wrong end its ``number``, ``case``, what was ``wrong`` and the end of what it ``said``. Raises ConfigError:
    there are no such cases."""
    seed = SEED if seed is None else seed
    numbers = range(FEW if quick else FAULTS) if only is None else numbers_of(only)
    played = play_all([draw(seed, number) for number in numbers], progress, play)
    return summary(seed, played, (one.case.kind for one in played)) | {
        "resumed": sum(one.resumed for one in played),
        "missed": [one.case.number for one in played if not one.struck and one.case.kind != "none"],
        "wrong": wrong_ends(played),
    }
