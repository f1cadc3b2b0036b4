"""The time of an exchange of 4 MB on a case's links: a ring of all workers, and DS-Sync's changing groups."""

import json
import statistics
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from uneven.policy.core.views import SyncView
from uneven.policy.sync import groupings
from uneven.run.lines import Traffic
from uneven.run.lines.communicator import RoundPlace, VectorLine
from uneven.run.lines.group_communicator import GroupCommunicator
from uneven.run.lines.rollcall import RollCall
from uneven.run.lines.transport import Transport
from uneven_bench.sync.arm import sent_bytes

EVERYBODY = "everybody"
WAYS = ("grid", "digits")
FLOATS = 1_000_000
_REPEATS = 3
_TURNS = 2  # in a repeat: a grid has two kinds of groups


@dataclass(frozen=True, slots=True)
class ExchangeTimes:
    """One way to exchange."""

    seconds: tuple[float, ...]  # of an exchange, one for each repeat, by the slowest worker
    sent_bytes: float  # through a worker's interface for it, mean of the workers
    messages: float  # from a worker to its neighbour in the ring, mean of the turns
    parts: float  # a worker's sent bytes ÷ the bytes of the vector, mean of the turns


def sweep(line: Transport, roll: RollCall, timeout_s: float) -> dict[str, ExchangeTimes]:
    """Measure every way, in turns. All ranks call it together. Raises PeerError: a rank did not take part."""
    carrier, vector = VectorLine(GroupCommunicator(roll, timeout_s), Traffic()), torch.zeros(FLOATS)
    members = tuple(range(line.size))
    view = SyncView(rank=line.rank, clock=0, members=members)
    ways: dict[str, list[tuple[int, ...]]] = {EVERYBODY: [members] * _TURNS}
    for name in WAYS:
        grouping = groupings.resolve(name)
        phases = [grouping.phase(line.size, turn) for turn in range(_TURNS)]
        found = [grouping.groups(view, phase) for phase in phases]
        ways[name] = [next(group for group in groups if line.rank in group) for groups in found]
    took: dict[str, list[tuple[float, int]]] = {name: [] for name in ways}
    for _ in range(_REPEATS):
        for name, groups in ways.items():
            dist.barrier()
            sent, started_s = sent_bytes(), time.perf_counter()
            for group in groups:
                carrier.total(vector, RoundPlace("the exchange of parameters", members=group))
            took_s = (time.perf_counter() - started_s) / _TURNS
            dist.barrier()
            took[name].append((took_s, (sent_bytes() - sent) // _TURNS))
    carrier.close()
    told = [json.loads(text) for text in line.gather_text(json.dumps(took))]
    return {
        name: ExchangeTimes(
            seconds=tuple(max(rank[name][repeat][0] for rank in told) for repeat in range(_REPEATS)),
            sent_bytes=statistics.mean(rank[name][repeat][1] for rank in told for repeat in range(_REPEATS)),
            messages=statistics.mean(2 * (len(group) - 1) for group in groups),
            parts=statistics.mean(2 * (len(group) - 1) / len(group) for group in groups),
        )
        for name, groups in ways.items()
    }
