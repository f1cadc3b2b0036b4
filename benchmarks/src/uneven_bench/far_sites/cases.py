"""The policies and worlds of ``uneven bench far-sites``."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from uneven.cluster.pure.describe.spec import ClusterSpec, Node, SiteLink, Workload, steady
from uneven_bench.sync.cases import CORES, SyncCase

BSP = "bsp"

POLICIES: dict[str, str] = {
    BSP: "bsp",
    "gaia 1%": "geo:bsp:threshold=0.01",
    "gaia 10%": "geo:bsp:threshold=0.1",
    "gaia 20%": "geo:bsp:threshold=0.2",
    "local 4": "local:every=4",
    "local 16": "local:every=16",
    "diloco 16": "diloco:every=16",
    "diloco 16, 4 pieces": "diloco:every=16,fragments=4,delay=2",
    "decoupled 16": "decoupled:every=16,quorum=2",
    "topk 1%": "topk:density=0.01",
    "sparse-local 4, 10%": "sparse-local:every=4,density=0.1,bits=2",
    "sparse-local 4, 10%, late 2": "sparse-local:every=4,density=0.1,bits=2,delay=2",
    "sparse-local 4, 2%": "sparse-local:every=4,density=0.02,bits=2",
    "sparse-local 16, 10%": "sparse-local:every=16,density=0.1,bits=2",
}
"""Name → policy, in virtual time. One worker stands for each site: workers of a site that average every gradient equal
one worker on their batch together."""

MULOCO: dict[str, tuple[str, float, float]] = {
    BSP: (BSP, 0.1, 0.0),
    "diloco 16": ("diloco 16", 0.03, 0.0),
    "sparse-local 4, 10%": ("sparse-local 4, 10%", 0.1, 0.0),
    "bsp, muon": (BSP, 0.1, 0.01),
    "diloco 16, muon": ("diloco 16", 0.1, 0.003),
    "sparse-local 4, 10%, muon": ("sparse-local 4, 10%", 0.1, 0.02),
}
"""Name → policy, learning rate, and Muon's for the hidden layer or 0: the best of three or four rates with one seed."""

QUICK_POLICIES = (BSP, "gaia 10%", "local 4", "sparse-local 4, 10%")

SITES = ("us-east", "eu-west", "asia-east")
BATCH = 192  # samples of a step, of three sites together


def world(name: str, lines: Mapping[tuple[str, str], tuple[float, float]]) -> ClusterSpec:
    """Return three sites of one worker each. ``lines``: two sites → Mbit/s, seconds one way."""
    nodes = tuple(Node(name=f"worker{place}", site=site) for place, site in enumerate(SITES))
    links = tuple(
        SiteLink(between=ends, bit_per_s=steady(mbit * 1e6), latency_s=latency_s)
        for ends, (mbit, latency_s) in lines.items()
    )
    workload = Workload(global_batch=BATCH, gradient_bytes=4_000_000, overhead_core_s=0.005, per_sample_core_s=0.001)
    return ClusterSpec(name=name, nodes=nodes, links=links, workload=workload)


_PAIRS = ((SITES[0], SITES[1]), (SITES[0], SITES[2]), (SITES[1], SITES[2]))

LINES: dict[str, dict[tuple[str, str], tuple[float, float]]] = {
    "three_sites": dict(zip(_PAIRS, ((200.0, 0.040), (67.0, 0.080), (17.0, 0.110)), strict=True)),
    "20mbit": dict.fromkeys(_PAIRS, (20.0, 0.050)),
    "100mbit": dict.fromkeys(_PAIRS, (100.0, 0.050)),
}
"""World → its lines; those of the first are the shipped cluster's."""


def worlds() -> dict[str, ClusterSpec]:
    return {name: world(name, lines) for name, lines in LINES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningCase:
    """One task that all policies learn in virtual time."""

    task: str  # of ``uneven_bench.far_sites.tasks``
    samples: int = 10_000  # to train
    steps: int = 300  # of every policy
    every: int = 6  # steps from one evaluation to the next
    policies: tuple[str, ...]
    worlds: tuple[str, ...]
    seeds: int = 3
    name: str = ""  # the task's, if not given
    rates: Mapping[str, tuple[str, float, float]] = field(default_factory=dict)  # as MULOCO; the task's, if not given


def learning(quick: bool, data: str) -> dict[str, LearningCase]:
    """Return the virtual cases by name. ``data``: the data of the quick form, and the first of the full one."""
    near = ("three_sites", "20mbit")
    if quick:
        given: dict[str, Any] = {"policies": QUICK_POLICIES, "worlds": near, "seeds": 1}
        return {data: LearningCase(task=data, steps=120, **given)}
    found = (
        LearningCase(task=data, policies=(*POLICIES,), worlds=(*LINES,)),
        LearningCase(task=data, name="muloco", policies=(*MULOCO,), worlds=("20mbit",), rates=MULOCO),
        LearningCase(task="cifar10", every=10, policies=(*POLICIES,), worlds=near),
        LearningCase(task="text", samples=50_000, policies=(*POLICIES,), worlds=near),
    )
    return {case.name or case.task: case for case in found}


ARMS: dict[str, str] = {
    BSP: "even bsp",
    "ddp": "ddp",
    "ddp-powersgd": "ddp:hook=powersgd",
    "gaia 1%": "even geo:bsp:threshold=0.01",
    "gaia 10%": "even geo:bsp:threshold=0.1",
    "topk 1%": "even topk:density=0.01",
    "local 4": "even local:every=4",
    "diloco 20": "even diloco:every=20",
    "diloco 20, 4 pieces": "even diloco:every=20,fragments=4,delay=2",
    "torchft-diloco 20": "torchft-diloco:every=20",
    "hivemind 20": "hivemind:every=20",
    "sparse-local 4, 10%": "even sparse-local:every=4,density=0.1,bits=2",
    "sparse-local 4, 10%, late 1": "even sparse-local:every=4,density=0.1,bits=2,delay=1",
    "sparse-local 4, 10%, late 2": "even sparse-local:every=4,density=0.1,bits=2,delay=2",
    "sparse-local 8, 10%": "even sparse-local:every=8,density=0.1,bits=2",
}
"""Arm of a real run → its text for ``uneven bench sync``."""

TWO_MINUTES = "it takes two minutes: ask for it by --case"  # the reason why the quick form leaves real runs out

NOT_ON_THREE_SITES = (
    *("ddp-powersgd", "torchft-diloco 20", "hivemind 20"),
    *("ddp", "gaia 1%", "sparse-local 4, 10%, late 2"),
)
"""Arms left out with six workers: a round of the first three took minutes with 160 ms there and back. The others are
much like an arm that stays, and each takes a minute."""

QUICK_ARMS = (BSP, "gaia 10%", "torchft-diloco 20", "sparse-local 4, 10%", "sparse-local 4, 10%, late 1")


def emulated(quick: bool) -> dict[str, SyncCase]:
    """Return the real runs by name: sites on emulated lines. ``quick``: with fewer arms, in shorter rounds."""
    found = {}
    for name, workers in (("20mbit", 3), ("100mbit", 3), ("three_sites", 6)):
        slow = name == "three_sites"
        left_out, rounds_s, equal_steps = (NOT_ON_THREE_SITES, (2.0,) * 2, 120) if slow else ((), (4.0,) * 3, 240)
        arms = {arm: who for arm, who in ARMS.items() if arm not in left_out and (not quick or arm in QUICK_ARMS)}
        lines = tuple((*ends, mbit, latency_s) for ends, (mbit, latency_s) in LINES[name].items())
        found[name] = SyncCase(
            name=name, about=f"{workers} workers at three sites, lines of {name}",
            shares=(round(CORES / workers, 4),) * workers, mbit_per_s=math.inf, arms=arms, batch=BATCH // workers,
            rounds_s=(2.0,) * 2 if quick else rounds_s, turns=1, settling_s=0.5,
            equal_steps=80 if quick else equal_steps, look_every=8,
            sites=tuple(SITES[rank * 3 // workers] for rank in range(workers)), lines=lines,
        )  # fmt: skip
    return found


SKEWS, QUICK_SKEWS = (0, 20, 40, 60, 80, 100), (0, 100)
NORMS = ("bn", "gn")
SKEWED: dict[str, str] = {
    BSP: "bsp",
    "gaia 20%": "geo:bsp:threshold=0.2",
    "gaia 2%": "geo:bsp:threshold=0.02",
    "fedavg 20": "local:every=20",
    "topk 1%": "topk:density=0.01",
}
"""Name → policy: Gaia, FederatedAveraging as local steps, DeepGradientCompression as the largest entries."""

SCOUT_SKEWS, QUICK_SCOUT_SKEWS = (0, 40, 100), (0,)
PARTS, PART_BATCH = 5, 20  # sites with their own data, and the batch of each


def five_sites() -> ClusterSpec:
    """Return five sites of one worker each, with unlimited lines."""
    nodes = tuple(Node(name=f"worker{site}", site=f"site{site}") for site in range(PARTS))
    return ClusterSpec(name="five-sites", nodes=nodes, workload=Workload(global_batch=PARTS * PART_BATCH))
