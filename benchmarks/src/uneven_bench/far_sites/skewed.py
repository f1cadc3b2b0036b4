"""Learning of sites with skewed labels in virtual time, and the effect of a tuner."""

import functools
import multiprocessing
import os
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from uneven.cluster.pure.simulate import Scenario
from uneven.cluster.virtual import train
from uneven.cluster.virtual.homes import HomeOrder
from uneven.cluster.virtual.virtual_traffic import ModelTraffic
from uneven.policy.balance import balancers
from uneven.policy.skew import partitions
from uneven.policy.sync import Scout, SyncPolicy, policies
from uneven_bench.far_sites.cases import BSP, NORMS, PART_BATCH, PARTS, SCOUT_SKEWS, SKEWED, five_sites
from uneven_bench.far_sites.tasks import LossTask, NormalizedTask, lenet, small_images
from uneven_bench.harness.show import Progress

_RATE = 0.03
_LAST = 2  # evaluations whose mean accuracy counts


@dataclass(frozen=True, slots=True)
class SkewedOutcome:
    """The result of one training."""

    accuracy: float
    models: float  # data that a site has sent to others, in whole models


@dataclass(frozen=True, slots=True, kw_only=True)
class SkewedRuns:
    """Trainings of one task on data that stay at their sites: small images."""

    samples: int  # to train on
    steps: int  # of each

    @property
    def data(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Images (samples, channels, 16, 16) and labels (samples,), to train on and to test with."""
        return _images(self.samples)

    def play(self, norm: str, skew: float, policy: SyncPolicy, seed: int = 0) -> SkewedOutcome:
        labels = self.data[0][1].numpy()
        numbers = partitions.resolve(f"label:percent={skew:g}").split(labels, PARTS, seed)
        homes = HomeOrder([own.tolist() for own in numbers], {site: site for site in range(PARTS)}, seed)
        module = lenet(self.data[0][0].shape[1], int(np.max(labels)) + 1, norm, seed)
        task: LossTask
        if norm == "bn":
            task = NormalizedTask(module, self.data, _RATE, homes.numbers, PART_BATCH)
        else:
            task = LossTask(module, self.data, _RATE)
        even = balancers.resolve("even")
        scenario = Scenario(spec=five_sites(), balancer=even, policy=policy, iterations=self.steps, seed=seed)
        traffic = ModelTraffic(homes.sites)
        found = train(scenario, task, every=max(1, self.steps // 12), homes=homes, traffic=traffic)
        last = [point.accuracy for point in found.points[-_LAST:]]
        return SkewedOutcome(statistics.mean(last), traffic.models)


def accuracies(runs: SkewedRuns, skews: Sequence[float], names: Sequence[str], told: Progress) -> dict[str, Any]:
    """Norm → skew in per cent → policy → accuracy; what ``--json`` has under ``accuracy``."""
    jobs = [SkewedTraining(norm, skew, SKEWED[name]) for skew in skews for norm in NORMS for name in names]
    played = _all_played(runs, jobs, told, "skewed labels")
    names_of = {spec: name for name, spec in SKEWED.items()}
    found: dict[str, Any] = {norm: {f"{skew:g}": {} for skew in skews} for norm in NORMS}
    for job, outcome in zip(jobs, played, strict=True):
        found[job.norm][f"{job.skew:g}"][names_of[job.policy]] = outcome.accuracy
    return found


_images = functools.cache(small_images)


class SkewedTraining(NamedTuple):
    """A planned training, with the name of its policy."""

    norm: str
    skew: float
    policy: str
    seed: int = 0


def _all_played(runs: SkewedRuns, jobs: Sequence[SkewedTraining], told: Progress, what: str) -> list[SkewedOutcome]:
    """All of them, one on each core; virtual time does not depend on it."""
    cores = len(os.sched_getaffinity(0))
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(cores, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        under_way = [pool.submit(_played, runs, job) for job in jobs]
        for number, _ in enumerate(as_completed(under_way)):
            told(what, f"{number + 1} of {len(jobs)} trainings", (number + 1) / len(jobs))
        return [one.result() for one in under_way]


def _played(runs: SkewedRuns, job: SkewedTraining) -> SkewedOutcome:
    return runs.play(job.norm, job.skew, policies.resolve(job.policy), job.seed)


def scouted(
    runs: SkewedRuns, told: Progress, *, period: int, tolerance: float, seeds: int, skews: Sequence[float] = SCOUT_SKEWS
) -> dict[str, Any]:
    """Compare the tuner with all fixed settings and with the oracle, and return ``scout`` of ``--json``."""
    settings = [setting for setting in Scout("geo").settings if setting]  # 0 is BSP
    fixed = {f"{setting:g}": f"geo:bsp:threshold={setting:g}" for setting in settings}
    ways = {BSP: "bsp", **fixed, "scout": f"scout:period={period}:geo"}
    keys = [(skew, way, seed) for skew in skews for seed in range(seeds) for way in ways]
    jobs = [SkewedTraining("gn", skew, ways[way], seed) for skew, way, seed in keys]
    outcomes = _all_played(runs, jobs, told, "the tuner")
    played: dict[float, dict[str, list[SkewedOutcome]]] = {skew: {way: [] for way in ways} for skew in skews}
    for (skew, way, _), outcome in zip(keys, outcomes, strict=True):
        played[skew][way].append(outcome)
    return {f"{skew:g}": judged(each, tolerance) for skew, each in played.items()}


def judged(played: dict[str, list[SkewedOutcome]], tolerance: float) -> dict[str, Any]:
    """Compare the tuner with the oracle for one skew, by medians over the seeds.

    The oracle is the fixed setting that sends least with an accuracy within the tolerance of BSP's; BSP if there is
    none.

    ``played``: ``bsp``, ``scout`` and the fixed settings → one outcome for each seed.
    """
    accuracy = {way: statistics.median(one.accuracy for one in each) for way, each in played.items()}
    models = {way: statistics.median(one.models for one in each) for way, each in played.items()}
    fixed = [way for way in played if way not in (BSP, "scout")]
    within = [way for way in (BSP, *fixed) if accuracy[way] >= accuracy[BSP] - tolerance]
    oracle = min(within, key=models.__getitem__)
    return {
        "oracle": oracle,
        "bytes_vs_oracle": models["scout"] / models[oracle],
        "bytes_vs_bsp": models["scout"] / models[BSP],
        "accuracy_vs_bsp": accuracy["scout"] - accuracy[BSP],
        "accuracy": accuracy,
        "bytes_of_bsp": {way: models[way] / models[BSP] for way in played},
    }
