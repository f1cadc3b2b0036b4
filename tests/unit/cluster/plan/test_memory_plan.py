"""Which workers hold a model together, by memory, and how batches follow speed."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uneven.cluster.pure.describe.spec import ClusterSpec, Node, Workload
from uneven.cluster.pure.plan.memory_plan import MOST_WORKERS, MachineMemory, MemoryPlan, divided, machines

GB = 10**9


def house(*memory_gb: float, speeds: tuple[float, ...] = ()) -> list[MachineMemory]:
    rates = speeds or (1.0,) * len(memory_gb)
    pairs = enumerate(zip(memory_gb, rates, strict=True))
    return [MachineMemory(f"node-{'abcdefgh'[at]}", gb * GB, rate) for at, (gb, rate) in pairs]


@pytest.mark.parametrize(
    ("memory_gb", "state_gb", "pass_gb", "workers", "told"),
    [
        ((24, 12), 36, 0, (2, 1), "fits: 24 + 12 GB with fully_shard: start 2 workers on node-a, and 1 on each other "),
        ((24, 24), 36, 4, (1, 1), "fits: 2 × 22 GB with fully_shard, one worker on each machine"),
        ((24, 48), 12, 4, (1, 1), "fits: 16 GB on each worker, without shards"),
        ((24, math.inf), 36, 0, (1, 1), "fits: 2 × 18 GB with fully_shard, one worker on each machine"),
        ((24, 8), 36, 0, (), "does not fit: needs 36 GB; node-a has 24 and node-b has 8: 4 GB short"),
        ((24, 8), 28, 3, (), "does not fit: needs 34 GB (28 of the model, 3 for the passes of each worker); node-a"),
        ((24, 8), 14, 9, (), "enough in unequal parts. fully_shard makes equal ones, and with at most 8 workers on a"),
    ],
)  # fmt: skip
def test_examples(
    memory_gb: tuple[float, ...], state_gb: int, pass_gb: int, workers: tuple[int, ...], told: str
) -> None:
    found = divided(house(*memory_gb), state_gb * GB, pass_gb * GB, 64)
    assert found.workers == workers
    assert told in found.told(house(*memory_gb))


def test_batches_follow_speed_and_keep_to_what_fits_a_device() -> None:
    assert divided(house(24, 12, speeds=(1.0, 3.0)), 36 * GB, 0, 64).samples == (16, 48)
    small = [MachineMemory("a", 8.0 * GB, 3.0, samples=20), MachineMemory("b", 8.0 * GB, 1.0, samples=60)]
    assert divided(small, GB, 0, 64).samples == (20, 44)
    assert "memory_samples add up to 80" in divided(small, GB, 0, 81).short


sizes = st.integers(1, 60)


@given(st.lists(sizes, min_size=1, max_size=3), st.integers(0, 90), st.integers(0, 12), st.data())
def test_parts_fit_or_none_do(memory: list[int], state: int, each_pass: int, data: st.DataObject) -> None:
    """Against all numbers of workers: a division is found if one exists, with the fewest workers."""
    those = [MachineMemory(f"n{at}", one, data.draw(st.floats(0.1, 100.0))) for at, one in enumerate(memory)]
    found = divided(those, state, each_pass, 100)
    counts = product(range(1, MOST_WORKERS + 1), repeat=len(those))
    fits = [sum(k) for k in counts if all(_used(k, state, each_pass, at) <= one for at, one in enumerate(memory))]
    assert bool(found.short) == (not fits)
    if found.short:
        assert found == MemoryPlan(short=found.short)
        return
    assert sum(found.samples) == 100
    fastest = max(range(len(those)), key=lambda at: those[at].speed)
    assert max(found.samples) <= found.samples[fastest] + 1  # equal speeds may differ by rounding
    assert all(held <= one for held, one in zip(found.held_bytes, memory, strict=True))
    if not found.whole:
        assert sum(found.workers) == min(fits)
        assert sum(found.held_bytes) >= state + each_pass * sum(found.workers)
        assert found.held_bytes == tuple(_used(found.workers, state, each_pass, at) for at in range(len(those)))


def _used(workers: tuple[int, ...], state: int, each_pass: int, at: int) -> int:
    return workers[at] * (math.ceil(state / sum(workers)) + each_pass)


@given(st.lists(sizes, min_size=1, max_size=4), st.integers(0, 90), st.integers(0, 12), st.integers(0, 3), sizes)
def test_more_memory_never_makes_a_model_not_fit(
    memory: list[int], state: int, each_pass: int, at: int, more: int
) -> None:
    those = [MachineMemory("n", one, 1.0) for one in memory]
    at %= len(those)
    larger = [*those[:at], MachineMemory("n", memory[at] + more, 1.0), *those[at + 1 :]]
    if not divided(those, state, each_pass, 8).short:
        assert not divided(larger, state, each_pass, 8).short


def test_the_machines_of_a_description() -> None:
    nodes = Node(name="a", cores=3, memory_bytes=24 * GB, memory_samples=50), Node(name="b")
    work = Workload(global_batch=80, overhead_core_s=0.0, per_sample_core_s=0.01)
    spec = ClusterSpec(name="house", nodes=nodes, workload=work)
    fast, slow = machines(spec)
    assert (fast.name, fast.memory_bytes, fast.samples) == ("a", 24e9, 50)
    assert (slow.memory_bytes, slow.samples) == (math.inf, math.inf)
    assert fast.speed / slow.speed == pytest.approx(3.0)
