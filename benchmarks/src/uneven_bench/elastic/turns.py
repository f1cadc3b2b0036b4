"""The cost of ``--elastic`` without faults: two runs of ours, with it and without, that take turns."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from uneven.cli.demo.demo_worker import GLOBAL_BATCH
from uneven.errors import LaunchError
from uneven_bench.elastic import judge
from uneven_bench.elastic.arms import UnevenArm
from uneven_bench.elastic.cases import DEMO, SIZES, UNDISTURBED
from uneven_bench.elastic.play import Player, playing
from uneven_bench.elastic.workload import CountedWorkload
from uneven_bench.harness.show import Progress

_WARM = 10
_ROUND_WITHIN_S = 120.0


def overhead(quick: bool, folders: Iterator[Path], progress: Progress) -> dict[str, Any]:
    """Return demo or size → ``ratio`` (median of step time with ÷ without), ``ratios``, ``step_s`` of both."""
    found = {}
    sizes = (DEMO,) if quick else UNDISTURBED
    rounds = 4 if quick else 20
    for place, size in enumerate(sizes):

        def told(done: float, size: str = size, place: int = place) -> None:
            progress("overhead", size, (place + done) / len(sizes))

        workers, steps = (3, 5) if size == "100MB" else (4, 15 if quick else 20)
        found[size] = _paired(size, workers, rounds, steps, folders, told)
    return found


def _workload(size: str) -> CountedWorkload:
    if size == DEMO:
        return CountedWorkload(demo=True, global_batch=GLOBAL_BATCH, samples=28 * GLOBAL_BATCH, per_sample_s=0.0)
    sleep_s = 0.0 if size.startswith("bare") else CountedWorkload().per_sample_s
    return CountedWorkload(model_bytes=SIZES[size], per_sample_s=sleep_s)


def _paired(
    size: str, workers: int, rounds: int, steps: int, folders: Iterator[Path], told: Callable[[float], None]
) -> dict[str, Any]:
    with ExitStack() as stack:
        players = []
        for elastic in (True, False):
            more: dict[str, Any] = {"least": 2, "most": workers, "between_faults_s": 0.0}
            arm = UnevenArm(workload=_workload(size), folder=next(folders), elastic=elastic, **more)
            player = stack.enter_context(playing(arm, until=_WARM))
            player.start(workers, ready=_WARM - 1)
            players.append(player)
        each: list[list[float]] = [[], []]
        for number in range(rounds):
            told(number / rounds)
            for place in (0, 1) if number % 2 else (1, 0):
                each[place].append(_round(players[place], _WARM + number * steps, steps))
        for player in players:
            player.end()
    ratios = [one / other for one, other in zip(*each, strict=True)]
    return {"ratio": median(ratios), "ratios": ratios, "step_s": [median(one) for one in each], "steps": steps}


def _round(player: Player, since: int, steps: int) -> float:
    """Let one run train ``steps`` steps, and return the median of a step, without the first, before which it waited."""
    player.orders.until(since + steps)
    if not player.wait(lambda: min(tail.reached for tail in player.logs.alive()) >= since + steps - 1, _ROUND_WITHIN_S):
        raise LaunchError(f"{steps} steps were not over within {_ROUND_WITHIN_S:g} s:\n{player.arm.said()[-3000:]}")
    moments = [moment for moment in judge.progress(player.logs.all()) if moment[1] >= since]
    return judge.step_s(moments)
