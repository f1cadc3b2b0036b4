"""The slow workers of a run and the causes, from the journals of all workers.

A worker is slow if its own work (data and compute) takes longer than the median worker's, in most steps, by more than
chance explains. Its cause is the quantity whose excess over the other workers covers most of that time.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median, pstdev

from uneven.journal.pure.metrics import Iteration, Timing
from uneven.policy.core.records import FactsRecord
from uneven.why.pure.findings import EVERY_WORKER, Explanation, Pause, Suspect, WorkerTimes

WARM_UP = 3  # first iterations that are not judged: memory is allocated, loaders start
LEAST_STEPS = 20  # for a name
_LATE = 0.08  # of a step; a worker that is late by less is not named
_LATE_IF_FULL = 0.25  # the same on a machine where all workers lack processors
_OFTEN = 0.5  # part of the steps in which it is late by half of that
_CERTAIN = 4.0  # standard errors of its mean lateness, over blocks of steps
_BLOCKS = 10
_COVERS = 0.4  # part of the lateness that the excess of a cause must cover
_PAUSE = 3.0  # times the usual step; longer ones are pauses and are judged apart
_HEAVIER = 1.1
_LOWER = 0.9  # of the others' clock rate or width
_FULL_MEMORY = 0.95
_WRITTEN = 1e6  # bytes of a pause that writes files
_QUEUED = 0.2  # part of a worker's own time without a processor; above, its machine is full
_PAGES = 20.0  # a step, read from disk because they were not in memory
_SLOW_LINK = 0.8  # of the rate of the fastest link
_QUEUE_S = 0.0005  # in the queue before a slow link, at least
_QUEUES = 2.0  # times the seconds in the queue before the fastest link
_STOPPED = 0.05  # excess lateness of the probe's own timer per second; above, the whole process stops at times
_SILENT_S = 5.0  # without a record while other workers write theirs
EXCHANGING = 0.15  # part of a step; below, no link is to blame


@dataclass(slots=True)
class FactSums:
    """The sums of a worker's facts."""

    sums: dict[str, float] = field(default_factory=dict)
    newest: dict[str, float] = field(default_factory=dict)
    records: int = 0
    others: dict[str, int] = field(default_factory=dict)  # competing process → number of times seen
    links: dict[str, int] = field(default_factory=dict)  # addresses of the busiest connection → number of times seen
    last: FactsRecord | None = None

    @classmethod
    def of(cls, records: Iterable[FactsRecord]) -> "FactSums":
        made = cls()
        for record in records:
            made.last = record
            if record.where:
                continue
            for name, value in record.values.items():
                made.sums[name] = made.sums.get(name, 0.0) + value
            made.newest.update(record.values)
            made.records += 1
            for seen, name in ((made.others, record.others), (made.links, record.link)):
                if name:
                    seen[name] = seen.get(name, 0) + 1
        return made

    def per_step(self, name: str) -> float:
        steps = self.sums.get("steps", 0.0)
        return self.sums.get(name, 0.0) / steps if steps else 0.0

    def mean(self, name: str) -> float:
        """Return the mean of a level; 0 if it is unknown."""
        return self.sums.get(name, 0.0) / self.records if self.records else 0.0

    @property
    def still_s(self) -> float:
        """The seconds per step that its thread slept outside of meetings."""
        parts = self.per_step("exchange_s") + self.per_step("ran_s") + self.per_step("queued_s")
        return max(0.0, self.per_step("whole_s") - parts)


def judge(
    run: str, iterations: Sequence[Iteration], facts: Mapping[int, FactSums], hosts: Mapping[int, str]
) -> Explanation:
    """Return the slow workers of a run, their causes, and the bound of the run. Remedies are added by the caller."""
    return replace(_judged(run, iterations, facts, hosts), still=_still_workers(facts))


def _judged(
    run: str, iterations: Sequence[Iteration], facts: Mapping[int, FactSums], hosts: Mapping[int, str]
) -> Explanation:
    known = [one for one in iterations[WARM_UP:] if math.isfinite(one.duration_s)]
    if not known:
        note = f"fewer than {WARM_UP + 2} steps are recorded: nothing can be compared"
        return Explanation(run, 0, math.nan, (), (), (), "", note=note)
    if any(one.apart for one in known):
        note = f"the workers of {run} take separate steps and never wait for a slow one: see `uneven watch`"
        return Explanation(run, 0, math.nan, (), (), (), "", note=note)
    step_s = median(one.duration_s for one in known)
    usual = [one for one in known if one.duration_s <= _PAUSE * step_s]
    ranks = sorted(usual[-1].timings)
    usual = [one for one in usual if sorted(one.timings) == ranks]
    workers = tuple(_worker(rank, hosts.get(rank, ""), [one.timings[rank] for one in usual]) for rank in ranks)
    suspects = list[Suspect]()
    note = ""
    if len(ranks) < 2:
        note = "there is one worker, so there is none to compare it with"
    elif not any(timing.wait_s + timing.communicate_s > 0.0 for one in usual for timing in one.timings.values()):
        note = "the workers exchange nothing: each of them trains alone, and no worker waits for another"
    elif len(usual) < LEAST_STEPS:
        note = f"{len(usual)} steps are too few to name a worker: record {LEAST_STEPS} or more"
    else:
        suspects = _late(usual, workers, facts, step_s)
        if not suspects and (slow := _slow_link(workers, facts, step_s)) is not None:
            suspects.append(slow)
    return Explanation(
        run=run,
        steps=len(known),
        step_s=step_s,
        workers=workers,
        suspects=tuple(sorted(suspects, key=lambda one: -one.late_s)),
        pauses=_pauses(known, facts, step_s),
        bound=_bound(workers, facts, step_s),
        note=note,
    )


def _still_workers(facts: Mapping[int, FactSums]) -> str:
    """Return the sentence about the newest seconds if no worker ends a step; empty otherwise."""
    last = {rank: one.last for rank, one in sorted(facts.items()) if one.last is not None}
    now_s = max((one.at_s for one in last.values()), default=0.0)
    still = {rank: one for rank, one in last.items() if one.where}
    silent = [rank for rank, one in last.items() if not one.where and now_s - one.at_s >= _SILENT_S]
    if not still or len(still) + len(silent) < len(last):
        return ""
    still_s = max(one.values["still_s"] for one in still.values())
    waiting = [rank for rank, one in still.items() if one.values["meets"]]
    parts = [f"rank {rank} is in {one.where}" for rank, one in still.items() if rank not in waiting]
    parts += [f"rank {rank} reports nothing, so it is stopped or has ended" for rank in silent]
    if waiting:
        wait = "waits" if len(waiting) == 1 else "wait"
        parts.append(f"{_ranks(waiting)} {wait} for other workers")
    return f"No step has ended for {still_s:.0f} s: {'; '.join(parts)}."


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _worker(rank: int, host: str, timings: Sequence[Timing]) -> WorkerTimes:
    return WorkerTimes(
        rank=rank,
        host=host,
        data_s=median(one.data_s for one in timings),
        compute_s=median(one.compute_s for one in timings),
        wait_s=median(one.wait_s for one in timings),
        communicate_s=median(one.communicate_s for one in timings),
    )


def _late(
    usual: Sequence[Iteration], workers: Sequence[WorkerTimes], facts: Mapping[int, FactSums], step_s: float
) -> list[Suspect]:
    found = []
    for worker in workers:
        late_s = [_lateness(one, worker.rank) for one in usual]
        full = _on_a_full_machine(worker, workers, facts)
        queued = full and _unqueued_s(worker.rank, facts) < _LATE * step_s
        bar_s = step_s * (_LATE_IF_FULL if queued else _LATE)
        part = sum(one > bar_s / 2 for one in late_s) / len(late_s)
        if median(late_s) >= bar_s and part >= _OFTEN and _certain(late_s):
            cause, evidence = _cause(worker, workers, facts, median(late_s))
            found.append(
                Suspect(
                    rank=worker.rank,
                    host=worker.host,
                    late_s=median(late_s),
                    part_of_steps=part,
                    cause=cause,
                    evidence=evidence,
                    shared=full and cause != "blocked",  # a worker that sleeps takes no processor from the others
                )
            )
    return found


def _unqueued_s(rank: int, facts: Mapping[int, FactSums]) -> float:
    """Return the seconds per step in which a worker ran, slept or was throttled longer than the others.

    On a full machine, the wait for a processor is a matter of luck. These seconds are not.
    """

    def own_s(one: FactSums) -> float:
        throttled_s = min(one.per_step("throttled_s"), one.per_step("queued_s"))
        return one.per_step("ran_s") + one.still_s + throttled_s

    return own_s(facts.get(rank, FactSums())) - median(own_s(one) for other, one in facts.items() if other != rank)


def _lateness(one: Iteration, rank: int) -> float:
    """Return the seconds by which a worker's own work exceeded the median of the others'."""
    others = [timing.local_s for other, timing in one.timings.items() if other != rank]
    return one.timings[rank].local_s - median(others)


def _certain(late_s: Sequence[float]) -> bool:
    """Return whether the mean is above 0 by more than chance explains. Blocks are compared: neighbours are similar."""
    size = max(1, len(late_s) // _BLOCKS)
    means = [fmean(late_s[at : at + size]) for at in range(0, len(late_s) - size + 1, size)]
    error = pstdev(means) / math.sqrt(len(means))
    return fmean(means) > _CERTAIN * error


def _on_a_full_machine(worker: WorkerTimes, workers: Sequence[WorkerTimes], facts: Mapping[int, FactSums]) -> bool:
    """Return whether the other workers of its machine, or of its control group, lack processors as well."""
    others = [facts.get(one.rank, FactSums()) for one in workers if one.host == worker.host and one is not worker]
    group = facts.get(worker.rank, FactSums()).newest.get("group")
    parts = [_queued_part(one, quota=one.newest.get("group") == group) for one in others]
    return bool(parts) and median(parts) >= _QUEUED


def _queued_part(one: FactSums, *, quota: bool) -> float:
    """Return the part of a worker's time in which it has no processor; ``quota``: also because of its quota."""
    queued_s = one.per_step("queued_s")
    if not quota:
        queued_s = max(0.0, queued_s - one.per_step("throttled_s"))
    return queued_s / (one.per_step("ran_s") + queued_s) if queued_s else 0.0


def _queued_per_ran(one: FactSums) -> float:
    ran_s = one.per_step("ran_s")
    return one.per_step("queued_s") / ran_s if ran_s else 0.0


def _cause(
    worker: WorkerTimes, workers: Sequence[WorkerTimes], facts: Mapping[int, FactSums], late_s: float
) -> tuple[str, str]:
    """Return the cause of a worker's lateness, and the sentence that shows it."""
    mine = facts.get(worker.rank, FactSums())
    others = [facts.get(one.rank, FactSums()) for one in workers if one.rank != worker.rank]

    def excess(name: str) -> float:
        return mine.per_step(name) - median(one.per_step(name) for one in others)

    data_s = worker.data_s - median(one.data_s for one in workers if one.rank != worker.rank)
    still_s = mine.still_s - median(one.still_s for one in others)
    heavier = _ratio(mine.per_step("elements"), median(one.per_step("elements") for one in others))
    compute_s = median(one.compute_s for one in workers if one.rank != worker.rank)
    # On a full machine more work waits longer as well, in proportion.
    queued_s = mine.per_step("queued_s") - mine.per_step("ran_s") * median(_queued_per_ran(one) for one in others)
    enough_s = _COVERS * late_s
    pages = excess("major_faults") >= _PAGES
    # A worker that swaps loads its data slowly too, and its thread sleeps: so this comes before those.
    if pages and (mine.newest.get("swapped_bytes") or mine.mean("memory") >= _FULL_MEMORY):
        return _without_memory(mine)
    if data_s >= enough_s:
        return "data", f"its batches take {_ms(data_s)} longer to load" + _data_source(mine, excess, data_s)
    if excess("collected_s") >= enough_s:
        return "collection", f"the collector takes {_ms(mine.per_step('collected_s'))} of a step"
    if excess("compiled_s") >= enough_s:
        return "compilation", f"compiling takes {_ms(mine.per_step('compiled_s'))} of a step"
    if pages and still_s + excess("ran_s") + excess("queued_s") >= enough_s:
        return _without_memory(mine)
    if heavier >= _HEAVIER and (heavier - 1) * compute_s >= enough_s:
        return "batch", f"its batches have {heavier:.2f} times the elements of the others'"
    if queued_s >= enough_s:
        return _without_processor(mine, queued_s, excess)
    if found := _slow_device(mine, others):
        return found
    if still_s >= enough_s:
        return _still(mine, still_s, _late_part(mine) - median(_late_part(one) for one in others))
    clock = _ratio(mine.mean("clock"), median(one.mean("clock") for one in others))
    if 0.0 < clock < _LOWER:
        return "clock", f"its processor runs at {clock:.0%} of the others' clock rate"
    ran_s = mine.per_step("ran_s")
    if not ran_s:  # a session's run without the measurement
        return "processor", f"its computing takes {_ms(worker.compute_s)}, that of the others {_ms(compute_s)}"
    slower = _ratio(ran_s, ran_s - excess("ran_s"))
    return "processor", f"the same work takes {slower:.2f} times the processor time of the others"


def _without_memory(mine: FactSums) -> tuple[str, str]:
    swapped = mine.newest.get("swapped_bytes", 0.0)
    pages = mine.per_step("major_faults")
    return "memory", f"{pages:.0f} pages a step come from disk ({swapped / 1e6:.0f} MB swapped)"


def _slow_device(mine: FactSums, others: Sequence[FactSums]) -> tuple[str, str] | None:
    """Return the cause that the state of its GPU shows, compared with the others' GPUs."""
    clock = _ratio(mine.mean("gpu_clock"), median(one.mean("gpu_clock") for one in others))
    width = _ratio(mine.mean("pcie_width"), median(one.mean("pcie_width") for one in others))
    if mine.mean("gpu_hot") - median(one.mean("gpu_hot") for one in others) > 0.5:
        celsius, rate = mine.mean("gpu_celsius"), f"{clock:.0%} of the others' clock rate"
        return "heat", f"at {celsius:.0f} °C it runs at {rate}"
    if 0.0 < clock < _LOWER:
        return "gpu-clock", f"it runs at {clock:.0%} of the others' clock rate, without heat"
    if 0.0 < width < _LOWER:
        return "pcie", f"it uses {width:.0%} of the others' PCIe width"
    return None


def _data_source(mine: FactSums, excess: Callable[[str], float], data_s: float) -> str:
    if excess("ran_s") + excess("queued_s") >= 0.5 * data_s:
        return ", most of it in computing them"
    if mine.sums.get("network_files", 0.0):
        return ", from a network file system"
    read_bytes = excess("read_bytes")
    return f", with {read_bytes / 1e6:.1f} MB read from disk" if read_bytes > 1e5 else ", most of it in waiting"


def _without_processor(mine: FactSums, queued_s: float, excess: Callable[[str], float]) -> tuple[str, str]:
    if excess("throttled_s") > 0.3 * queued_s:
        cores = mine.newest.get("quota_cores")
        limit = f" to {cores:.2g} of a processor" if cores is not None else ""
        part = _ratio(mine.sums.get("throttled_s", 0.0), mine.sums.get("clock_s", 0.0))
        return "quota", f"its control group limits it{limit} and stopped it for {part:.0%} of the time"
    if _ratio(mine.sums.get("stolen_s", 0.0), mine.sums.get("clock_s", 0.0)) > 0.1:
        return "steal", f"the hypervisor took {mine.sums['stolen_s']:.1f} s of processor time"
    whose = max(mine.others, key=mine.others.__getitem__) if mine.others else "another process"
    return "contention", f"it waits {_ms(mine.per_step('queued_s'))} of a step for a processor; {whose} runs there"


def _late_part(one: FactSums) -> float:
    """Return the part of the time by which the probe's own timer was late. On a busy machine all are late."""
    clock_s = one.sums.get("clock_s", 0.0)
    return one.sums.get("late_s", 0.0) / clock_s if clock_s else 0.0


def _still(mine: FactSums, still_s: float, later: float) -> tuple[str, str]:
    if later >= _STOPPED:
        return "stopped", f"all its threads did not run for {_ms(still_s)} of a step: a signal or a freezer stops it"
    return "blocked", f"its thread sleeps for {_ms(still_s)} of a step, and does not wait for a processor"


def _slow_link(workers: Sequence[WorkerTimes], facts: Mapping[int, FactSums], step_s: float) -> Suspect | None:
    """Return the worker whose connections are slower than the others', if the exchange takes long.

    In a ring, all connections pass the same bytes, but data queues only in front of the slow ones.
    """
    exchange_s = median(one.communicate_s for one in workers)
    links = _links(workers, facts)
    if exchange_s < EXCHANGING * step_s or len(links) < 2:
        return None
    rates = {ends: link_rate(one) for ends, one in links.items()}
    fastest, least_s = max(rates.values()), min(one.mean("queue_s") for one in links.values())
    slow = [
        ends
        for ends, one in links.items()
        if rates[ends] <= _SLOW_LINK * fastest and one.mean("queue_s") >= max(_QUEUE_S, _QUEUES * least_s)
    ]
    places = {place for ends in slow for place in ends}
    both = [place for place in places if all(ends in slow for ends in links if place in ends)]
    if len(slow) == len(links) or (len(both) != 1 and len(slow) != 1):
        return None
    sender = both[0] if len(both) == 1 else slow[0][0]
    ends = next(ends for ends in links if ends[0] == sender)
    rate = rates[ends]
    worker = next(one for one in workers if _sender(facts.get(one.rank)) == sender)
    receivers = [one.rank for one in workers if _sender(facts.get(one.rank)) == ends[1]]
    to = "" if len(both) == 1 else f" to rank {receivers[0]}"
    again = links[ends].sums.get("sent_again", 0.0)
    more = f"; {again:.0f} segments were sent again" if again else ""
    return Suspect(
        rank=worker.rank,
        host=worker.host,
        late_s=exchange_s * (1 - rate / fastest),
        part_of_steps=1.0,
        cause="link",
        evidence=f"it sends {rate / 1e6:.1f} MB/s{to}, the fastest link {fastest / 1e6:.1f} MB/s{more}",
    )


def _links(workers: Sequence[WorkerTimes], facts: Mapping[int, FactSums]) -> dict[tuple[str, str], FactSums]:
    """Return the facts of a sender for each pair of addresses with a network between them."""
    made = dict[tuple[str, str], FactSums]()
    for one in workers:
        known = facts.get(one.rank, FactSums())
        if known.links and link_rate(known) > 0:
            sender, receiver = max(known.links, key=known.links.__getitem__).split(" ")
            if sender != receiver:
                made[sender, receiver] = known
    return made


def _sender(known: FactSums | None) -> str:
    """Return the address from which a worker sends most; empty if unknown."""
    return max(known.links, key=known.links.__getitem__).split(" ")[0] if known is not None and known.links else ""


def link_rate(one: FactSums) -> float:
    """Return the bytes per second that a worker sends while it sends; NaN if unknown."""
    return _ratio(one.sums.get("sent_bytes", 0.0), one.sums.get("sending_s", 0.0))


def _pauses(known: Sequence[Iteration], facts: Mapping[int, FactSums], step_s: float) -> tuple[Pause, ...]:
    lost: dict[int, list[float]] = {}
    for one in known:
        if one.duration_s > _PAUSE * step_s:
            lost_s = one.duration_s - step_s
            slowest = max(one.timings, key=lambda rank: one.timings[rank].local_s)
            alone = len(one.timings) > 1 and _lateness(one, slowest) >= lost_s / 2
            lost.setdefault(slowest if alone else EVERY_WORKER, []).append(lost_s)
    whole_s = sum(one.duration_s for one in known)
    made = [
        Pause(
            rank=rank,
            steps=len(seconds),
            lost_s=sum(seconds),
            part=sum(seconds) / whole_s,
            cause=_pause_cause(facts.get(max(0, rank), FactSums()), sum(seconds)),
        )
        for rank, seconds in lost.items()
    ]
    return tuple(sorted(made, key=lambda one: -one.lost_s))


def _pause_cause(mine: FactSums, lost_s: float) -> str:
    sources = {
        "checkpoint": "saved_s",
        "evaluation": "evaluated_s",
        "compilation": "compiled_s",
        "collection": "collected_s",
    }
    for cause, name in sources.items():
        if mine.sums.get(name, 0.0) >= _COVERS * lost_s:
            return cause
    return "writing" if mine.sums.get("written_bytes", 0.0) >= _WRITTEN else ""


def _bound(workers: Sequence[WorkerTimes], facts: Mapping[int, FactSums], step_s: float) -> str:
    """Return a sentence about the largest part of a step of the median worker."""
    parts = {
        "computing": median(one.compute_s for one in workers),
        "loading data": median(one.data_s for one in workers),
        "waiting for other workers": median(one.wait_s for one in workers),
        "communication": median(one.communicate_s for one in workers),
    }
    largest = max(parts, key=parts.__getitem__)
    text = f"{largest.capitalize()} takes most of a step: {_ms(parts[largest])} of {_ms(step_s)}."
    known = [facts.get(one.rank, FactSums()) for one in workers]
    queued = median(_queued_part(one, quota=False) for one in known)
    stopped = median(_queued_part(one, quota=True) for one in known)
    rates = [rate for one in known if (rate := link_rate(one)) > 0]
    if largest == "computing" and queued >= _QUEUED:
        text += f" For {queued:.0%} of it the workers wait for a processor: there are too many processes for the cores."
    elif largest == "computing" and stopped >= _QUEUED:
        text += f" For {stopped:.0%} of it the quotas of their control groups stop the workers."
    elif largest == "communication" and rates:
        text += f" A worker sends {median(rates) / 1e6:.1f} MB/s."
    return text


def _ratio(above: float, below: float) -> float:
    return above / below if below > 0 else math.nan


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"
