"""The cases of ``uneven bench sync``: workers, links and arms."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product

YARDSTICK = "unsynchronised"  # the arm that exchanges nothing: what the same workers reach at best
AGAIN = "unsynchronised-again"
"""The yardstick once more, made after all others but the twins: an arm's place in memory is worth a per cent or two.
Shares are of the mean of both."""

BARE = "bare"  # the arm next to which gloo sums as many bytes, back to back, without use: the limit of a shadow
DDP = "ddp"
SHADOWS = ("shadow:easgd", "shadow:ma", "shadow:bmuf")
"""ShadowSync's three algorithms, S-EASGD in the form that needs no server."""

TWINS = {"shadow:easgd": "fr-easgd", "shadow:ma": "fr-ma", "shadow:bmuf": "fr-bmuf"}
"""Shadow → its twin in the foreground, at the fixed rate that costs the same bytes."""

GAUGE = "shadow:ma"  # the arm whose bytes set the twins' rate
TORCHFT = "torchft-"  # the first word of the text of torchft's arms
HIVEMIND = "hivemind"  # the first word of the text of hivemind's arm


def package_of(who: str) -> str | None:
    """Return the package of a rival's arm, which may not be installed; None for all others."""
    return next((one.rstrip("-") for one in (TORCHFT, HIVEMIND) if who.startswith(one)), None)


SEEDS = 3  # seeds of the comparison of shadows and twins, in its own case
EVERY = "{every}"  # a placeholder in an arm's text: steps between two exchanges for as many bytes as the gauge's
NETS = {"fast": math.inf, "100mbit": 100.0, "20mbit": 20.0}
SIZES = (2, 4, 8)
CORES = 1.6  # cores of all workers together; the machine should have two
SLOW = 4  # the factor of the straggler
BATCH = 64  # samples of each worker in a step
_WARM_UP_STEPS = 500  # steps without block momentum, as many as fairseq's warm-up has


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncCase:
    """One comparison."""

    name: str
    about: str
    shares: tuple[float, ...]  # of a core, one for each worker
    mbit_per_s: float  # of each worker's link, both ways; infinite: the machine's
    arms: Mapping[str, str] = field(default_factory=dict)  # name → text; see ``uneven_bench.sync.arms.make``
    batch: int = BATCH  # samples of each worker in a step
    rounds_s: tuple[float, ...] = (2.1,) * 15  # training seconds of the arms in each round that counts
    turns: int = 7  # stretches of yardsticks and shadows in a round, interleaved; the other arms have one
    settling_s: float = 1.0  # of the round before, which does not count for the speed
    gauge_s: float = 18.0  # training of the gauge before its bytes count
    equal_steps: int = 720  # every arm trains at least this number of steps of all workers in the end
    look_every: int = 0  # steps between evaluations then; 0: one at the end
    sites: tuple[str, ...] = ()  # the site of each worker; empty: a half of them at each of two
    lines: tuple[tuple[str, str, float, float], ...] = ()  # between sites: the two, Mbit/s, seconds one way

    @property
    def workers(self) -> int:
        return len(self.shares)

    @property
    def by_turns(self) -> list[str]:
        """The arms that train in several stretches, for a precision of one per cent."""
        return [name for name in self.arms if name in (YARDSTICK, AGAIN, *SHADOWS)] if self.turns > 1 else []


def seeded(name: str, seed: int) -> str:
    """Return the name of an arm with other first weights and another order of samples."""
    return f"{name}@{seed}" if seed else name


def seed_of(name: str) -> int:
    return int(name.partition("@")[2] or 0)


def arms(workers: int, straggler: bool) -> dict[str, str]:
    """Return all arms of the full form: name → text. ``straggler``: one worker is slower, so balanced shares are
    compared too."""
    # The rule of thumb for the momentum, 1 − 1/n; in foreground and shadow.
    momentum = f"momentum={1 - 1 / workers:g},warmup_samples={_WARM_UP_STEPS * BATCH * workers}"
    found = {
        YARDSTICK: "none",
        BARE: "bare",
        DDP: "ddp",
        "ddp-fp16": "ddp:hook=fp16",
        "ddp-powersgd": "ddp:hook=powersgd",
        "post-local": "post-local:every=8",
        "torchft-diloco": "torchft-diloco:every=20",
        "bsp": "even bsp",
        "local": "even local:every=8",
        "diloco": "even diloco:every=20",
        "shuffle": "even shuffle",
        "hierarchical": "even hierarchical:every=8",
        "asp": "even asp",
        "ssp": "even ssp",
        "backup": "even backup",
        "easgd": "even easgd:every=8",
        "shadow:easgd-copy": "even shadow:easgd",
        "shadow:easgd": "even shadow:easgd:together=true",
        "shadow:ma": "even shadow:ma",
        "shadow:bmuf": f"even shadow:bmuf:{momentum}",
        "shadow:ma-100%": "even shadow:load=1:ma",
        "fr-easgd": f"even easgd:together=true,every={EVERY}",
        "fr-ma": f"even ma:every={EVERY}",
        "fr-bmuf": f"even bmuf:every={EVERY},{momentum}",
    }
    if straggler:
        found["bsp-balanced"] = "lb-bsp bsp"
    return found | {AGAIN: "none"}


def cases() -> dict[str, SyncCase]:
    """Return all cases by name: ``fast-2`` … ``both-8``; each with its shadows, ``fast-2-shadows`` and so on; and
    ``twins-4``, with losses of several seeds."""
    found = {}
    for workers, (net, mbit) in product(SIZES, (NETS | {"straggler": math.inf, "both": NETS["100mbit"]}).items()):
        slow = net not in NETS
        who = f"{workers} workers, one of them {SLOW} times slower," if slow else f"{workers} equal workers"
        speed = "links without a limit" if math.isinf(mbit) else f"links of {mbit:g} Mbit/s"
        found[f"{net}-{workers}"] = SyncCase(
            name=f"{net}-{workers}",
            about=f"{who} on {speed}",
            shares=_one_slow(workers) if slow else _even(workers),
            mbit_per_s=mbit,
            arms=arms(workers, straggler=slow),
        )
    found |= {one.name: one for one in map(_shadows_alone, list(found.values()))}
    about = f"as 100mbit-4: shadows and their twins, {SEEDS} seeds"
    found["twins-4"] = replace(
        found["100mbit-4"], name="twins-4", about=about, arms=_compared(SEEDS, 4), rounds_s=_TWINS_ROUNDS_S, turns=1
    )
    return found


def few() -> dict[str, SyncCase]:
    """Return two cases of :func:`short` with even fewer arms, both within 90 seconds."""
    all_of, pair = arms(4, straggler=False), arms(2, straggler=True)
    names = (YARDSTICK, BARE, DDP, *SHADOWS, AGAIN)
    found = {"100mbit-4": (all_of, (*names, "local")), "straggler-2": (pair, (*names, "bsp-balanced"))}
    full = short()
    return {
        name: replace(full[name], arms={arm: every[arm] for arm in every if arm in some}, rounds_s=_SHORT_ROUNDS_S[:2])
        for name, (every, some) in found.items()
    }


_LEFT = (
    "ddp-fp16", "ddp-powersgd", "post-local", "bsp", "hierarchical", "shuffle", "asp", "ssp", "backup",
    *TWINS.values(),
)  # fmt: skip
"""Arms left out of the short form of a case."""


def short() -> dict[str, SyncCase]:
    """Return every case in a form of a minute and a half, with fewer arms and rounds."""
    found = {}
    for name, case in cases().items():
        if name == "twins-4":
            one = _compared(1, case.workers)
            found[name] = replace(case, arms=one, rounds_s=_TWINS_ROUNDS_S[:2], gauge_s=6.0, equal_steps=90)
        elif case.rounds_s == _SHADOWS_ROUNDS_S:
            found[name] = replace(case, rounds_s=case.rounds_s[:3])
        else:
            left = {arm: who for arm, who in case.arms.items() if arm not in _LEFT}
            found[name] = replace(case, arms=left, rounds_s=_SHORT_ROUNDS_S, turns=3, settling_s=0.7, equal_steps=90)
    return found


_SHORT_ROUNDS_S = (0.9,) * 3
_TWINS_ROUNDS_S = (1.5, 3.0, 6.0, 9.0)
"""Twins stop only at an exchange, some seconds apart; and losses fall steeply at first."""


_TURN_S = 0.3
"""On a shared machine two successive stretches differ by as much when they are short as when they are long (0.05 to
0.07 in thread time, between 0.05 and 8 s), so their number counts. In stretches of 1.5 s the standard error of a share
is 0.02, too much for the 0.03 that a shadow may cost."""

_SHADOWS_ROUNDS_S = (3.0,) * 20


def _shadows_alone(case: SyncCase) -> SyncCase:
    """Return the case with shadows only, as a user has it, without the threads and memory of twenty others."""
    few = {name: case.arms[name] for name in (YARDSTICK, *SHADOWS, AGAIN)}
    name, about = f"{case.name}-shadows", f"{case.about}: shadows alone"
    turns = round(_SHADOWS_ROUNDS_S[0] / _TURN_S)
    return replace(case, name=name, about=about, arms=few, rounds_s=_SHADOWS_ROUNDS_S, turns=turns, equal_steps=0)


def _compared(seeds: int, workers: int) -> dict[str, str]:
    """Return shadows and their twins, with some seeds each; the gauge comes with all of them."""
    known = arms(workers, straggler=False)
    pairs = [name for pair in TWINS.items() for name in pair]
    return {YARDSTICK: known[YARDSTICK]} | {seeded(name, seed): known[name] for seed in range(seeds) for name in pairs}


def _even(workers: int) -> tuple[float, ...]:
    return (round(CORES / workers, 4),) * workers


def _one_slow(workers: int) -> tuple[float, ...]:
    """Return shares as in the cases of equal workers, except the last one."""
    share = min(0.6, CORES / workers)
    return (*(round(share, 4),) * (workers - 1), round(share / SLOW, 4))
