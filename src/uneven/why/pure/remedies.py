"""What would help a run with a slow worker: each remedy is simulated on the run's own records."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from uneven.cluster.pure.plan.what_if import WhatIf, simulated
from uneven.errors import ConfigError
from uneven.journal.pure.metrics import iterations
from uneven.policy.core.records import FactsRecord, Record, StepRecord
from uneven.why.pure.causes import EXCHANGING, FactSums
from uneven.why.pure.findings import Explanation, Remedy, Suspect

_SEEDS = range(3)
_STEPS = 400  # simulated at least: in a short run, balancers would still look for their shares
_WORTH = 1.03  # smaller gains are not listed
_LOCAL, _SHARES = "with local:every=8", "with lb-bsp"
_BALANCED = "uneven run --balance lb-bsp SCRIPT"


@dataclass(frozen=True, slots=True)
class Cure:
    """A remedy before it is simulated."""

    text: str  # for the simulation, see `cluster.pure.plan.what_if.parse`
    words: str  # for people
    command: str = ""


_RARELY = Cure(_LOCAL, "averaging every 8 steps instead of each", "uneven run --sync local:every=8 SCRIPT")


def with_remedies(found: Explanation, records: Sequence[Record]) -> Explanation:
    """Return the explanation with the gain of each remedy; a note gives the reason if there are none."""
    if any(one.shared for one in found.suspects):
        reason = "its machine has no free processors, so a faster worker would take them from the others"
        return replace(found, note=f"no gain is promised: {reason}")
    known = changes(found)
    gains = dict[str, list[float]]()
    try:
        for seed in _SEEDS if known else ():
            made = simulation(found.run, records, [one.text for one in known], seed)
            for one in made.played[1:]:
                gains.setdefault(one.words, []).append(made.gain(one))
    except ConfigError as error:
        return replace(found, note=f"no remedy was simulated: {error}")
    remedies = [
        Remedy(
            words=one.words,
            gain=median(gains[one.text]),
            least=min(gains[one.text]),
            most=max(gains[one.text]),
            command=one.command,
        )
        for one in known
        if median(gains[one.text]) >= _WORTH
    ]
    return replace(found, remedies=tuple(sorted(remedies, key=lambda one: -one.gain)))


def simulation(run: str, records: Sequence[Record], texts: Sequence[str], seed: int) -> WhatIf:
    """Simulate a run of ``uneven why`` as it was, and with the change of each what-if text.

    Raises:
        ConfigError: a text is invalid, or the run cannot be simulated.
    """
    return simulated(run, _within_quotas(_with_transfers(records)), texts, seed, least=_STEPS)


def changes(found: Explanation) -> list[Cure]:
    """Return the remedies that can apply to a run."""
    communicate_s = median([one.communicate_s for one in found.workers] or [0.0])
    if found.suspects and found.suspects[0].cause != "link":
        return _of_a_slow_worker(found, found.suspects[0])
    if not found.suspects and communicate_s < EXCHANGING * found.step_s:
        return []
    factor, words = 0.5, "a link twice as fast"
    if found.suspects:  # of a ring, the slowest link sets the time
        factor = max(0.01, 1 - found.suspects[0].late_s / communicate_s)
        words = f"a link of rank {found.suspects[0].rank} as fast as the others'"
    return [Cure(f"an exchange {factor:.3f} times as long", words), _RARELY]


def _of_a_slow_worker(found: Explanation, slow: Suspect) -> list[Cure]:
    others = [one for one in found.workers if one.rank not in {suspect.rank for suspect in found.suspects}]
    middle = sorted(others or found.workers, key=lambda one: one.own_s)[len(others or found.workers) // 2]
    words = {"data": "more loader workers: rank {} loads as fast as the others"}.get(
        slow.cause, "rank {} as fast as the others"
    )
    made = [Cure(f"rank {slow.rank} as fast as rank {middle.rank}", words.format(slow.rank))]
    if len(found.workers) > 2:
        made.append(Cure(f"without rank {slow.rank}", f"leaving rank {slow.rank} out"))
    if slow.cause == "batch":  # equal costs take equal times, as shares that follow the speed do
        made.append(Cure(_SHARES, "batches of equal cost (uneven.Session, cost=)", _BALANCED))
    else:
        made.append(Cure(_SHARES, "unequal shares (three lines: uneven.Session)", _BALANCED))
    command = "uneven run --balance lb-bsp --sync local:every=8 SCRIPT"
    both = Cure(f"{_SHARES} and {_LOCAL}", "unequal shares, averaged every 8 steps", command)
    return [*made, _RARELY, both]


def _with_transfers(records: Sequence[Record]) -> list[Record]:
    """Return the records with the transfer of each step: the part of an exchange in which no worker waits for another.

    A worker without a session does not know it.
    """
    communicated = {one.iteration: one.timings for one in iterations(records)}
    made = list[Record]()
    for one in records:
        if isinstance(one, StepRecord) and not one.transfer_s:
            timing = communicated.get(one.iteration, {}).get(one.rank)
            one = replace(one, transfer_s=timing.communicate_s if timing else 0.0)
        made.append(one)
    return made


def _within_quotas(records: Sequence[Record]) -> list[Record]:
    """Return the records with the time that each worker's quota allows it in a lasting run.

    A worker that waits for a slow one saves its quota, and then computes faster than the quota. If no worker is slow,
    it cannot: a step takes the processor time of its training thread ÷ its quota or more.
    """
    facts = dict[int, list[FactsRecord]]()
    for one in records:
        if isinstance(one, FactsRecord):
            facts.setdefault(one.rank, []).append(one)
    sums = {rank: FactSums.of(found) for rank, found in facts.items()}
    least_s = {
        rank: one.per_step("ran_s") / one.newest["quota_cores"]
        for rank, one in sums.items()
        if "quota_cores" in one.newest
    }
    made = list[Record]()
    for one in records:
        if isinstance(one, StepRecord) and one.rank in least_s:
            more_s = min(
                max(0.0, least_s[one.rank] - one.data_s - one.compute_s), one.exchange_s - (one.transfer_s or 0.0)
            )
            if more_s > 0.0:
                one = replace(one, compute_s=one.compute_s + more_s, exchange_s=one.exchange_s - more_s)
        made.append(one)
    return made
