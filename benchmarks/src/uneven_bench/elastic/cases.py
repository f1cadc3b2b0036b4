"""The cases of ``uneven bench elastic``, with the faults of each, drawn from a seed."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

SETTLED = 20  # the steps before a fault whose median is the usual step time
KINDS = ("kill", "stop", "cut", "leave", "join")
"""Events with a measured pause: SIGKILL, SIGSTOP, a line that is down, SIGTERM, a newcomer."""

MOMENTS = ("any", "exchange", "between", "join")
"""At any time, during an exchange, during the computing, or while a newcomer replaces a killed worker."""

OURS, TORCHFT, TORCHFT_DDP, TORCHRUN, STEADY = "uneven", "torchft", "torchft-ddp", "torchrun", "ddp"
"""The arms: ours; torchft with an all-reduce by hand, and with its own DDP; torchrun's restart; DDP undisturbed."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A planned fault of a run."""

    kind: str  # one of :data:`KINDS`
    moment: str = "any"  # of :data:`MOMENTS`
    fraction: float = 0.5  # the part of a usual exchange, or of the computing, that is over then
    victims: int = 1  # the number of workers hit at the same time
    later_s: float = 0.0  # delay between the first and the second of two victims

    @property
    def words(self) -> str:
        where = {"any": "at any moment", "exchange": "in an exchange", "between": "between exchanges"}
        where["join"] = "and another one while a newcomer comes in its place"
        return f"{self.kind}{f' of {self.victims}' if self.victims > 1 else ''} {where[self.moment]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The description of a case."""

    name: str
    arms: tuple[str, ...]  # the systems, in turns
    size: str = "4MB"  # of the model, a key of :data:`SIZES`
    workers: int = 4  # at the beginning
    faults: tuple[PlannedFault, ...] = ()  # in order; after each a newcomer replaces the lost worker, which is a join
    founders: int = 0  # workers that start together; the others join, on separate machines if lines are cut. 0 is all.
    rounds: int = 1  # rounds of the turns; each plays its part of the faults
    double: bool = False  # the model is float64 and the steps are replayed
    settled: int = SETTLED  # steps without a fault before each
    per_sample_s: float = 0.02 / 60  # see :class:`uneven_bench.elastic.workload.CountedWorkload`
    silence_s: float = 10.0  # the longest silence of a worker of ours
    restarts: int = 0  # workers that our launcher starts again, so that none has to join
    syncs: tuple[str, ...] = ()  # our policy in each turn; empty means bsp in all


SIZES = {"4MB": 4_000_000, "100MB": 100_000_000, "bare 4MB": 4_000_000, "100KB": 100_000}
"""Name → bytes of parameters. Workers of a ``bare`` size do not sleep."""

DEMO = "demo"
UNDISTURBED = (DEMO, "4MB", "100MB", "bare 4MB")  # the sizes of the run without faults, ``uneven demo`` included
CUT = "cut"
RANDOM = "random"
PLAYED = ("faults", "faults-100mb", "stop", CUT, "torchft-ddp", "replay", RANDOM)
OVERHEAD = "overhead"
SPOT = {f"spot-{arm}": arm for arm in (OURS, TORCHFT, TORCHRUN)}
NAMES = (*PLAYED, OVERHEAD, *SPOT)  # all cases, the trace of spot machines one for each arm
TOGETHER = {"spot": tuple(SPOT)}  # groups of cases with one name
QUICK = ("faults", "stop", "replay", OVERHEAD, *SPOT)  # the cases of ``--quick``
RANDOM_FAULTS = 250  # faults of one seed: they take some eight minutes

POLICIES = ("bsp", "local:every={}", "ma:every={}", "blocks:every={},merge=mean", "bmuf:every={},momentum=0.5",
            "diloco:every={}", "shuffle:ma:every={}", "asp", "ssp:staleness={}", "easgd:every={}", "backup:spares=1",
            "shadow:load=1:easgd")  # fmt: skip
"""The policies of each random case, in a drawn order with drawn numbers of steps."""

_EVERY = (2, 8)

_QUICK_SILENCE_S = 4.0  # the silence limit of the stop in ``--quick``; the default of a run is 10 s
SPOT_S, SPOT_QUICK_S = 150.0, 6.0
CHANGES, CHANGES_QUICK = 20, 2


def draw(seed: int, name: str, kinds: Sequence[tuple[str, str]], victims: int = 1) -> tuple[PlannedFault, ...]:
    """Draw faults of these kinds and moments; the seed and the name decide when each strikes."""
    dice = Random(f"{seed}/{name}")
    return tuple(
        PlannedFault(kind, moment, round(dice.uniform(0.1, 0.9), 3), victims, round(dice.uniform(0.0, 0.05), 4))
        for kind, moment in kinds
    )


def case(name: str, seed: int, quick: bool) -> Case:
    """Return a case of :data:`PLAYED`, drawn from a seed."""
    if quick:
        return _quick(name, seed)
    kills = [("kill", moment) for moment in ("exchange", "between", "any")]
    match name:
        case "faults":
            single = draw(seed, name, [*kills, *kills, *[("leave", "any")] * 5])
            double = draw(seed, "double", [("kill", "exchange"), ("kill", "any")], victims=2)
            return Case(name=name, arms=(OURS, TORCHFT, TORCHRUN), faults=_mixed(seed, (*single, *double)), rounds=2)
        case "faults-100mb":
            faults = draw(seed, name, [*kills, *kills[:2], *[("leave", "any")] * 2])
            return Case(name=name, arms=(OURS, TORCHFT), size="100MB", workers=3, faults=_mixed(seed, faults))
        case "stop":
            moments = ("any", "exchange", "between", "any", "exchange")
            faults = draw(seed, name, [("stop", moment) for moment in moments])
            return Case(name=name, arms=(OURS, TORCHFT), faults=faults)
        case "cut":
            faults = draw(seed, name, [("cut", "any")] * 5)
            return Case(name=name, arms=(OURS, TORCHFT), faults=faults, founders=2)
        case "torchft-ddp":
            return Case(name=name, arms=(TORCHFT_DDP,), faults=draw(seed, name, kills[:1]), rounds=5)
        case "random":
            return Case(
                name=name, arms=(OURS,), size="100KB", double=True, faults=_at_random(seed), settled=3,
                per_sample_s=0.002 / 60, silence_s=4.0, restarts=2 * RANDOM_FAULTS, rounds=len(POLICIES),
                syncs=_policies(seed),
            )  # fmt: skip
        case _:
            single = draw(seed, name, [*kills * 3, ("leave", "any")])
            double = draw(seed, "double", [("kill", "exchange")] * 3, victims=2)
            return Case(name=name, arms=(OURS,), double=True, faults=_mixed(seed, (*single, *double)))


def _quick(name: str, seed: int) -> Case:
    inside, between = ("kill", "exchange"), ("kill", "between")
    match name:
        case "faults":
            return Case(name=name, arms=(OURS, TORCHFT), faults=draw(seed, name, [inside, ("leave", "any")]))
        case "stop":
            return Case(name=name, arms=(OURS,), faults=draw(seed, name, [("stop", "any")]), silence_s=_QUICK_SILENCE_S)
        case _:
            faults = draw(seed, name, [inside, between])
            return Case(name=name, arms=(OURS,), double=True, faults=faults)


def _at_random(seed: int) -> tuple[PlannedFault, ...]:
    """Draw faults of all kinds: most kill one worker; few are stops, as each takes the silence limit."""
    dice = Random(f"{seed}/{RANDOM}")
    kinds = [("kill", "exchange", 1)] * 8 + [("kill", "between", 1)] * 6 + [("kill", "any", 1)] * 7
    kinds += [("kill", "exchange", 2), ("kill", "any", 2), ("kill", "join", 2), ("kill", "join", 2)]
    kinds += [("leave", "any", 1)] * 4 + [("stop", "any", 1)]
    drawn = [dice.choice(kinds) for _ in range(RANDOM_FAULTS)]
    return tuple(
        PlannedFault(kind, moment, round(dice.random(), 3), victims, round(dice.uniform(0.0, 0.05), 4))
        for kind, moment, victims in drawn
    )


def _policies(seed: int) -> tuple[str, ...]:
    dice = Random(f"{seed}/policies")
    return tuple(one.format(dice.randint(*_EVERY)) for one in dice.sample(POLICIES, len(POLICIES)))


def at_own_pace(sync: str) -> bool:
    """Return whether a policy lets each worker step at its own speed, through a parameter server."""
    return sync.startswith(("asp", "ssp", "easgd", "backup", "shadow"))


def steps_apart(sync: str) -> int:
    """Return the steps between two exchanges of a policy."""
    every = re.search(r"every=(\d+)", sync)
    return 1 if every is None else int(every.group(1))


def _mixed(seed: int, faults: tuple[PlannedFault, ...]) -> tuple[PlannedFault, ...]:
    return tuple(Random(f"{seed}/order").sample(faults, len(faults)))


def turns(case: Case) -> list[tuple[str, tuple[PlannedFault, ...]]]:
    """Return the arms and their faults in order. In more rounds than faults, each round plays all of them."""
    if len(case.faults) < case.rounds:
        return [(arm, case.faults) for _ in range(case.rounds) for arm in case.arms]
    return [(arm, case.faults[part :: case.rounds]) for part in range(case.rounds) for arm in case.arms]


def checkpoint_every(save_s: float, step_s: float, between_faults_s: float) -> int:
    """Return the steps between two checkpoints of torchrun's script. The interval that loses least is √(2 · time to
    save · mean time between faults): Young, "A first order approximation to the optimum checkpoint interval", CACM
    17(9), 1974."""
    return max(1, round(math.sqrt(2.0 * save_s * between_faults_s) / step_s))
