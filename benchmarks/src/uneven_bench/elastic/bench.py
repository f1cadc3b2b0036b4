"""``uneven bench elastic``: pauses, lost samples and goodput when workers are killed, stopped, sent away and added.

Every arm trains the same network on the same samples. Each worker logs the time of each step and the samples in its sum
(:mod:`uneven_bench.elastic.workload`); all figures come from these files.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from uneven_bench.elastic import arms, cases, figures
from uneven_bench.elastic.cases import CUT, NAMES, OVERHEAD, QUICK, SIZES, SPOT, TOGETHER, TORCHFT, Case, PlannedFault
from uneven_bench.elastic.figures import JudgedRun
from uneven_bench.elastic.machines import Machines, why_no_machines
from uneven_bench.elastic.play import Played, playing
from uneven_bench.elastic.spot import spot
from uneven_bench.elastic.turns import overhead
from uneven_bench.elastic.workload import CountedWorkload
from uneven_bench.harness.show import Progress, chosen

SEED = 30

_BETWEEN_FAULTS_S = 10.0  # the mean time between faults, for torchrun's checkpoints


def run(
    quick: bool, progress: Progress, seed: int | None = None, case: str | None = None, trace: str | None = None
) -> dict[str, Any]:
    """Play the cases. ``seed``: draws the faults; ``case``: the single one to play; ``trace``: the cluster
    description whose machines come and go in the spot cases; None is our usual record. Result: ``faults`` (of ours),
    ``lost`` and ``twice`` (samples of ours), ``replay_error``, ``pause_s`` (kind → median seconds beyond a step, of
    ours at 4 MB), ``overhead`` (size → step time with ``--elastic`` ÷ without), ``goodput`` (ours, of the present
    capacity), ``goodput_vs_torchrun``, ``goodput_vs_torchft``; ``cases`` with all measurements, by case and arm;
    ``left_out``: arm or case → reason; ``versions``. None means not measured. Raises UnknownNameError: unknown
    case."""
    seed = SEED if seed is None else seed
    names = chosen(case, (*NAMES, *TOGETHER), QUICK if quick else NAMES)
    names = TOGETHER.get(names[0], names)
    left_out = {arm: why for arm in (TORCHFT,) if (why := arms.missing(arm))}
    found: dict[str, dict[str, Any]] = {}
    rates: dict[int, float] = {}
    for name in names:
        with tempfile.TemporaryDirectory(prefix="uneven-elastic-") as parent:
            folders = _folders(Path(parent))
            if name == OVERHEAD:
                found[name] = overhead(quick, folders, progress)
            elif name in SPOT:
                arm = SPOT[name]
                played = {} if arm in left_out else spot(arm, quick, seed, rates, folders, progress, trace)
                found[name] = played
            elif name == CUT and (why := why_no_machines()):
                left_out[CUT], found[name] = why, {}
            else:
                found[name] = faults(cases.case(name, seed, quick), left_out, seed, folders, progress)
    return figures.summary(found) | {"cases": found, "left_out": left_out, "seed": seed, "versions": arms.versions()}


def faults(
    case: Case, left_out: dict[str, str], seed: int, folders: Iterator[Path], progress: Progress
) -> dict[str, Any]:
    """Play a case with faults, and return its figures by arm."""
    workload = CountedWorkload(model_bytes=SIZES[case.size], double=case.double, per_sample_s=case.per_sample_s)
    runs: dict[str, list[JudgedRun]] = {}
    turns = [turn for turn in cases.turns(case) if turn[0] not in left_out]
    for number, (name, due) in enumerate(turns):

        def told(what: str, number: int = number, name: str = name) -> None:
            progress(case.name, f"{name}: {what}", number / len(turns))

        folder, sync = next(folders), case.syncs[number] if case.syncs else "bsp"
        # One more machine for each newcomer: a machine that was cut off is not used again.
        machines = Machines(case.workers + len(due)) if case.name == CUT else None
        more = {"sync": sync} if case.syncs else {}
        arm = arms.make(
            name, workload=workload, folder=folder, least=2, most=case.workers, between_faults_s=_BETWEEN_FAULTS_S,
            machines=machines, silence_s=case.silence_s, restarts=case.restarts, **more,
        )  # fmt: skip
        played = _played(arm, case, due, sync, Random(f"{seed}/{number}"), told)
        runs.setdefault(name, []).append(figures.of(played, workload, folder, sync))
    progress(case.name, "", 1.0)
    return {name: figures.told(each) for name, each in runs.items()}


def _played(
    arm: arms.ElasticArm, case: Case, due: Sequence[PlannedFault], sync: str, dice: Random, told: Callable[[str], None]
) -> Played:
    with playing(arm, steps_apart=cases.steps_apart(sync), together=not cases.at_own_pace(sync)) as player:
        told("starts")
        player.start(case.founders or case.workers)
        for _ in range(case.workers - case.founders if case.founders else 0):
            player.join()
        for fault in due:
            told(fault.words)
            if not player.suffer(fault, dice, case.settled):
                return player.played(over=False)
        told("ends")
        return player.played(over=player.end())


def _folders(parent: Path) -> Iterator[Path]:
    for number in count():
        folder = parent / str(number)
        folder.mkdir()
        yield folder
