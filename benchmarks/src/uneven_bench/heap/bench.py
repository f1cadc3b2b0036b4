"""``uneven bench heap``: one worker that keeps the memory of a step for the next one, beside one that does not.

Each is a process of its own, as what glibc does concerns the whole of it. They train in turns; one waits for its turn
while the other one trains.
"""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from uneven.errors import LaunchError
from uneven.run.start.heap import left_to_us

_CHILD = "uneven_bench.heap.child"
WAYS = ("plain", "kept")
BATCHES = (16, 64, 256, 1024)
_ROUNDS, _QUICK_ROUNDS = 13, 5
_SAMPLES = 2048  # in a turn
_LONGEST_S = 300.0  # that a turn may take

Progress = Callable[[str, str, float], None]


def run(quick: bool, data: str, progress: Progress) -> dict[str, Any]:
    """Train both, for every size of batch.

    Returns:
        ``cases`` (batch → ``step_s`` and ``faults`` (way → median per step), ``of_plain`` (median, lower and upper
        quartile of the time of ``kept`` over that of ``plain`` in the same round)), ``rounds``.

    Raises:
        LaunchError: a process that trains has died, or is silent for five minutes.
    """
    rounds = _QUICK_ROUNDS if quick else _ROUNDS
    found: dict[int, dict[str, list[dict[str, float]]]] = {batch: {way: [] for way in WAYS} for batch in BATCHES}
    for place, batch in enumerate(BATCHES):
        with ExitStack() as stack:
            turns = {way: stack.enter_context(_child(way, batch, data)) for way in WAYS}
            for turn in turns.values():
                turn()  # its first steps
            for number in range(rounds):
                progress("training", f"batches of {batch}", (place + number / rounds) / len(BATCHES))
                for way in WAYS if number % 2 else reversed(WAYS):
                    found[batch][way].append(turns[way]())
    progress("training", "done", 1.0)
    return {"cases": {str(batch): _summary(ways) for batch, ways in found.items()}, "rounds": rounds}


@contextmanager
def _child(way: str, batch: int, data: str) -> Iterator[Callable[[], dict[str, float]]]:
    """A process; what is called lets it train for one turn, and returns seconds and faults per step."""
    command = [sys.executable, "-m", _CHILD, way, str(batch), str(max(_SAMPLES // batch, 2)), data]
    environment = {**left_to_us(os.environ), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        process_group=0,  # Ctrl-C is for this process, which ends that one
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    sent, heard = process.stdin, process.stdout
    who = f"the process that trains {way!r} with batches of {batch}"

    def turn() -> dict[str, float]:
        try:
            print(file=sent, flush=True)
            if not select.select([heard], [], [], _LONGEST_S)[0]:
                raise LaunchError(f"{who} has said nothing for {_LONGEST_S:g} s: is it stopped?")
            told: dict[str, float] = json.loads(heard.readline())
        except (BrokenPipeError, json.JSONDecodeError) as error:
            raise LaunchError(f"{who} has died") from error
        return told

    try:
        yield turn
    finally:
        process.kill()
        process.communicate()


def _summary(ways: Mapping[str, list[dict[str, float]]]) -> dict[str, Any]:
    seconds = {way: [one["step_s"] for one in each] for way, each in ways.items()}
    ratios = [kept / plain for plain, kept in zip(*(seconds[way] for way in WAYS), strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return {
        "step_s": {way: statistics.median(each) for way, each in seconds.items()},
        "faults": {way: statistics.median(one["faults"] for one in each) for way, each in ways.items()},
        "of_plain": [middle, low, high],
    }


def tables(result: dict[str, Any]) -> list[Table]:
    """The result for people."""
    table = Table(title=f"memory of a step kept for the next one, {result['rounds']} rounds", box=SIMPLE_HEAD)
    for heading in ("batch", "plain, ms", "kept, ms", "kept ÷ plain", "faults a step", "kept"):
        table.add_column(heading, justify="right")
    for batch, row in result["cases"].items():
        middle, low, high = row["of_plain"]
        table.add_row(
            f"{int(batch):,}",
            *(f"{1e3 * row['step_s'][way]:.1f}" for way in WAYS),
            f"{middle:.2f} [{low:.2f} … {high:.2f}]",
            *(f"{row['faults'][way]:,.0f}" for way in WAYS),
        )
    return [table]
