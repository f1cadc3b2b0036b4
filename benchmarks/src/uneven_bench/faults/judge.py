"""The judge of a run with a fault: the right end, and each sample used once."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from uneven_bench.faults.cases import SAMPLES, Expected, FaultCase, expected

Line = tuple[int, int, Sequence[int]]  # epoch, iteration of it from 1, samples of one worker
Used = tuple[int, Sequence[int]]  # epoch, samples of it
ENDS_WITHIN_S = 60.0
"""Seconds after fault and time-out: the roll call, half a minute for torch's shutdown, and a busy machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """The end of a run."""

    code: int | None  # of the launcher; None if it ran ``ENDS_WITHIN_S`` after fault and time-out
    said: str  # all output of launcher and workers
    struck: bool  # there was a fault; the others may take all samples before the culprit comes to its step
    finished: tuple[int, ...]  # ranks that came to the end of the script
    processes: tuple[str, ...] = ()  # those that remained after the end
    files: tuple[str, ...] = ()  # those outside of the run directory then


def judge(case: FaultCase, outcome: RunEnd) -> list[str]:
    """Return the errors in the end of the run; empty if all is right."""
    want = expected(case) if outcome.struck else Expected(codes=(0,), named="", others=True)
    wrong = [f"left running: {one}" for one in outcome.processes]
    wrong += [f"left behind: {one}" for one in outcome.files if not one.startswith(want.leftovers or ("\0",))]
    if outcome.code is None:
        return [f"had not ended {ENDS_WITHIN_S:g} s after the fault and the time-out", *wrong]
    code = 128 - outcome.code if outcome.code < 0 else outcome.code
    if want.codes is not None and code not in want.codes:
        codes = str(want.codes[0]) if len(want.codes) == 1 else "anything but 0"
        wrong.append(f"exit code {code}, not {codes}")
    if not names(want.named, case.rank, outcome.said):
        wrong.append(f"does not name {'rank ' + str(case.rank) if want.named == 'rank' else want.named}")
    if "out of memory" in outcome.said and case.kind != "kill":
        wrong.append("blames memory")
    others = set(range(case.workers)) - ({case.rank} if outcome.struck else set())
    if want.others is not None and (others <= set(outcome.finished)) != want.others:
        came = ", ".join(map(str, sorted(others & set(outcome.finished)))) or "none"
        wrong.append(f"{'all' if want.others else 'not all'} others should have come to the end; there are: {came}")
    return wrong


def names(what: str, rank: int, said: str) -> bool:
    """Return whether the message names the culprit, and not with others, nor as a mere witness."""
    if what != "rank":
        return what in said
    _, _, error = said.rpartition("error: ")
    if error.rstrip().endswith("its error is above"):  # a worker has printed it
        error += "".join(line for line in said.splitlines() if "uneven.errors." in line)
    text = re.sub(r"\(noticed by [^)]*\)", "", error or said)
    return re.search(rf"\brank {rank}(?!\d|, \d| of \d+ could)", text) is not None


def once(held: Iterable[Used], second: Iterable[Line], epochs: int, *, lost: bool, anywhere: bool) -> list[str]:
    """Return the errors in the samples of a checkpoint and of the run that resumed from it. ``held``: the samples in
    the checkpoint's model; ``epochs``: of the whole run; ``lost``: a worker was lost before, and with it samples that
    it had taken; ``anywhere``: the rest of an epoch may have come in the next one, so only the sums are compared."""
    used: dict[int, Counter[int]] = {epoch: Counter() for epoch in range(epochs)}
    for epoch, samples in (*held, *((epoch, samples) for epoch, _, samples in second)):
        used.setdefault(epoch, Counter()).update(samples)
    wrong = [f"resumed: epoch {epoch} was trained, of {epochs}" for epoch in sorted(used) if epoch >= epochs]
    counts = {f"epoch {epoch}": one for epoch, one in sorted(used.items()) if epoch < epochs}
    if anywhere:
        counts = {f"{epochs} epochs": sum(counts.values(), Counter())}
    due = epochs if anywhere else 1
    for where, one in counts.items():
        never, often = (sum(sign * (due - one[sample]) > 0 for sample in range(SAMPLES)) for sign in (1, -1))
        if often or (never and not lost):
            wrong.append(f"resumed: in {where} {never} samples too seldom, {often} too often")
    return wrong


def doubled(lines: Iterable[Line], epochs: int, whole: bool) -> list[str]:
    """Return the errors in the samples of a run that was not resumed; a ``whole`` one must miss none."""
    used: dict[int, Counter[int]] = {epoch: Counter() for epoch in range(epochs if whole else 0)}
    for epoch, _, samples in lines:
        used.setdefault(epoch, Counter()).update(samples)
    wrong = []
    for epoch, counts in sorted(used.items()):
        if often := sum(count > 1 for count in counts.values()):
            wrong.append(f"in epoch {epoch} {often} samples more than once")
        if whole and len(counts) < SAMPLES:
            wrong.append(f"in epoch {epoch} {SAMPLES - len(counts)} samples never")
    return wrong
