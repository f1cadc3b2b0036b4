"""The judge of a run on several hosts: the right ends, the culprit's name, and each sample used once."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, takewhile

from uneven.cluster.emulate.pure import names
from uneven_bench.machines.cases import BATCH, EPOCHS, HOSTS, OF_LINES, SAMPLES, STORE, UNSENT, MachinesCase, expected

_TOO_LATE = "came too late: "

Sample = tuple[int, int]  # epoch, index
Use = tuple[int, int, int]  # and the worker


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEnd:
    """The end of a host's launcher, or of the store."""

    code: int | None  # None if it ran past its limit
    said: str
    took_s: float  # after the last fault
    done: bool = False  # its worker came to the end of the script
    worker: int | None = None  # number of its worker
    taken: tuple[Sample, ...] = ()  # samples of its batches
    used: frozenset[Use] | None = None  # those in its model at the end
    left: tuple[str, ...] = ()  # processes and files after its end


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsVerdict:
    """What was wrong, and the samples that were lost or used twice against a promise."""

    wrong: tuple[str, ...]
    lost: int
    twice: int


def judge(case: MachinesCase, ends: Mapping[int, HostEnd]) -> HostsVerdict:
    """Return the errors in the ends of all hosts of a case."""
    died = {one.host for one in case.strikes if one.kind == "die"}
    wrong = [
        f"{f'host {host}' if host in case.workers else 'the store'} {one}"
        for host in sorted(ends.keys() - died)
        for one in _end(case, host, ends)
    ]
    lost, twice = _samples(case, ends)
    wrong += [f"{len(some)} samples {how}, as {some[0]}" for how, some in (("lost", lost), ("twice", twice)) if some]
    return HostsVerdict(wrong=tuple(wrong), lost=len(lost), twice=len(twice))


def _end(case: MachinesCase, host: int, ends: Mapping[int, HostEnd]) -> Iterator[str]:
    late = {one for one, end in ends.items() if _TOO_LATE in end.said}  # not let in yet when others were lost
    want, end = expected(case, late), ends[host]
    kinds = {one.host: one.kind for one in case.strikes}
    # The last record may be the first that hangs.
    hung_late = "hang-journal" in kinds.values() and any(one.done for one in ends.values())
    yield from (f"leaves {one}" for one in end.left)
    if end.code is None:
        if host not in want.waits:
            yield f"had not ended {want.within_s:g} s after the last fault"
        return
    _, trace, error = end.said.rpartition("Traceback (most recent call last)")
    ours = re.search(r"^(\[rank\d+\]: )?uneven\.errors\.", error, re.MULTILINE)
    if trace and not ours and kinds.get(host) != "full-save":
        yield f"ends with exit code {end.code} and a traceback of no error of uneven"
    elif want.through and host not in want.lost:
        if end.code != 0:
            yield f"ends with exit code {end.code}, not 0"
        if host in case.workers and not end.done:
            yield "did not come to the end of the script"
    # Behind a cut the host with the server continues alone.
    elif not (hung_late or (end.done and case.served and host == STORE * case.elastic)):
        if end.code == 0:
            yield "ends with exit code 0"
        # A host that is cut off cannot see that, and names what it misses. When the links are counted, all may be back.
        missed = [one for one in ends if one != host] if kinds.get(host) in ("cut", "stall") else list(want.lost)
        excuse = _TOO_LATE
        if {"cut", "stall"} & {*kinds.values()}:
            excuse += "|connection between some|from shard 0"
        named = any(_names(one, ends[one], end.said) for one in missed) or re.search(excuse, end.said)
        if host in case.workers and not named:
            yield f"names none of hosts {missed}: {end.said.strip().splitlines()[-1:]}"


def _names(host: int, end: HostEnd, said: str) -> bool:
    if (host == STORE and re.search(r"\bstore\b", said)) or f"//{names.address(host)}:" in said:
        return True
    return end.worker is not None and re.search(rf"\b(rank|worker)s? ([\d, ]*\b)?{end.worker}\b", said) is not None


def _samples(case: MachinesCase, ends: Mapping[int, HostEnd]) -> tuple[list[Sample], list[Sample]]:
    """Return the samples that the first finished model lacks, and those that it has twice."""
    want = expected(case)
    models = [end.used for host, end in ends.items() if end.used is not None and host not in want.lost]
    if not models or not want.through:
        return [], []
    users = Counter((epoch, index) for epoch, index, _ in models[0])
    batches = Counter((end.worker, sample) for end in ends.values() for sample in end.taken)
    again = [(epoch, index) for epoch, index, worker in models[0] if batches[worker, (epoch, index)] > 1]
    # Only a run that is not elastic, or the last worker of a site under geo, may lose a culprit's own samples.
    forgiven: set[Sample] = set()
    if not case.elastic or case.sync == "geo":
        forgiven = {sample for host in want.lost if host in ends for sample in ends[host].taken}
    if case.sync in UNSENT:
        # What a worker has moved since its last message. Where a line loses packets, that is long ago.
        lossy = any(one.kind in OF_LINES for one in case.strikes)
        most = None if lossy else 2 * UNSENT[case.sync] * BATCH // HOSTS
        for end in ends.values():
            forgiven |= set(takewhile(lambda one: one not in users, islice(reversed(end.taken), most)))
    all_samples = {(epoch, index) for epoch in range(EPOCHS) for index in range(SAMPLES)}
    missing = sorted(all_samples - users.keys() - forgiven)
    # A lost worker may have taken batches from the list and not read them yet: two, or more if it answers slowly.
    ahead = SAMPLES // HOSTS if case.lossy else 2 * BATCH // HOSTS
    ahead *= 0 if case.elastic else len(want.lost)
    return missing[ahead:], [sample for sample, count in users.items() if count > 1] + again
