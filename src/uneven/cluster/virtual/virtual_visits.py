"""Evaluations of models at other sites in virtual time, for policies that they tune."""

import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from uneven.cluster.virtual.homes import HomeOrder
from uneven.cluster.virtual.task import LearningTask
from uneven.cluster.virtual.virtual_traffic import ModelTraffic
from uneven.policy.sync import TunedPolicy


class VirtualVisits:
    """Evaluates every site's model at home after each period, and compares it as the policy asks.

    It takes no virtual time; the bytes of the models count.
    """

    def __init__(
        self, policy: TunedPolicy, task: LearningTask, homes: HomeOrder, traffic: ModelTraffic, seed: int
    ) -> None:
        self._policy = policy
        self._task = task
        self._homes = homes
        self._traffic = traffic
        self._speakers = {site: rank for rank, site in sorted(homes.sites.items(), reverse=True)}
        self._rng = torch.Generator().manual_seed(seed)
        self._sent = 0.0
        self._begun = -1
        self._due = policy.period

    def begins(self, iteration: int, parameters: Callable[[int], Tensor]) -> None:
        """Start a worker's step; at the end of a period, evaluate first, with ``parameters(rank)`` of shape (size,)."""
        self._begun = max(self._begun, iteration)
        if iteration < self._due:
            return
        self._due += self._policy.period
        samples = {site: self._sample(site) for site in self._speakers}
        models_of = {site: parameters(rank) for site, rank in sorted(self._speakers.items())}
        home = statistics.fmean(self._task.right(model, samples[site]) for site, model in models_of.items())
        loss = home - statistics.fmean(self._compared(models_of, samples))
        self._traffic.visit(self._traffic.of_bsp if self._policy.judge == "mean" else 1.0)
        models, self._sent = self._traffic.models - self._sent, self._traffic.models
        share = models / (self._policy.period * self._traffic.of_bsp)
        # From the step after the furthest one that has started, so that all workers have the same setting.
        self._policy.heard(self._begun + 1, loss=loss, share=share)

    def _compared(self, models: dict[int, Tensor], samples: dict[int, Tensor]) -> list[float]:
        # The accuracies of the models to compare with, by the policy's judge.
        sites = list(models)
        if self._policy.judge == "mean":
            whole = torch.stack(list(models.values())).mean(0)
            return [self._task.right(whole, samples[site]) for site in sites]
        ways = zip(sites, sites[1:] + sites[:1], strict=True)
        return [self._task.right(models[here], samples[there]) for here, there in ways]

    def _sample(self, site: int) -> Tensor:
        own = self._homes.numbers[site]
        return own[torch.randperm(len(own), generator=self._rng)[: self._policy.sample]]
