"""The emulated clusters on which ``uneven bench predictors`` records runs.

All nodes together have 1.7 cores, so that on a machine of two only the description disturbs them, with real processes
inside their control groups.
"""

from collections.abc import Sequence

import numpy as np

from uneven.cluster.pure.describe.spec import ClusterSpec, Node, Trace
from uneven_bench.predictors.cases import Floats

CORES = (0.55, 0.45, 0.4, 0.3)
ITERATIONS = 300
GLOBAL_BATCH = 128
ANNOUNCED = "rivals come and go"
BURSTS = "short bursts"

_GRAIN_S = 0.5
_BLOCK_GRAINS = (10, 20)  # a load of ``ANNOUNCED`` stays for 5 … 10 seconds
_LOADS = (0.0, 1.0, 2.0)
_BURST_S = 0.15
_BURST_EVERY = 40
_BURST_LOAD = 4.0
_SAMPLE_S = 1.5  # seconds of one sample, of five minutes, of a replayed trace of processor use
_MOST_LOAD = 5.0
_SAMPLES = 96


def announced() -> ClusterSpec:
    """Describe up to two competing processes on every node, at known moments."""
    loads = [Trace(values=_blocks(np.random.default_rng([0, 11, rank])), step_s=_GRAIN_S) for rank in range(len(CORES))]
    return _cluster("announced", loads)


def bursts() -> ClusterSpec:
    """Describe four competing processes on every node for 0.15 s, once in six seconds: too short for a forecast."""
    loads = []
    for rank in range(len(CORES)):
        rng = np.random.default_rng([0, 12, rank])
        values = np.zeros(_BURST_EVERY * 16)
        values[np.arange(16) * _BURST_EVERY + rng.integers(2, _BURST_EVERY - 2, 16)] = _BURST_LOAD
        loads.append(Trace(values=tuple(values.tolist()), step_s=_BURST_S))
    return _cluster("bursts", loads)


def replayed(name: str, use: Floats) -> ClusterSpec:
    """Replay a load as in a recorded trace of ``use`` (nodes, samples), 0 … 1, of five minutes each, 200 times as fast.
    A worker on one thread that competes with a load of u / (1 − u) processes gets 1 − u of its node."""
    loads = []
    for row in use[:, :_SAMPLES]:
        busy = np.minimum(row / np.maximum(1.0 - row, 1e-3), _MOST_LOAD)
        values = tuple(round(float(one), 2) for one in busy)
        loads.append(Trace(values=values, step_s=300.0, speedup=300.0 / _SAMPLE_S, source=name))
    return _cluster(name, loads)


def _cluster(name: str, loads: Sequence[Trace]) -> ClusterSpec:
    nodes = (Node(name=f"node{rank}", cores=cores, load=loads[rank]) for rank, cores in enumerate(CORES))
    return ClusterSpec(name=name, nodes=tuple(nodes))


def _blocks(rng: np.random.Generator, grains: int = 240) -> tuple[float, ...]:
    values: list[float] = []
    while len(values) < grains:
        load = rng.choice([one for one in _LOADS if not values or one != values[-1]])
        values += [float(load)] * int(rng.integers(*_BLOCK_GRAINS))
    return tuple(values[:grains])
