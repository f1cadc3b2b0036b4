"""Samples for workers that do not keep step. Pure."""

from __future__ import annotations

from dataclasses import replace

from uneven.simulate.world import Scenario
from uneven.sync import Pace


def streamed(scenario: Scenario) -> Scenario:
    """The scenario as comparisons need it: as many samples under every policy.

    Where workers go at their own pace they take their samples from one common order, as many together as under BSP in
    as many iterations; so each sample is used once an epoch, whoever takes it.
    """
    facts = scenario.policy.facts
    if facts is None or facts.pace not in (Pace.OWN, Pace.BOUNDED) or scenario.samples is not None:
        return scenario
    total = scenario.iterations * scenario.spec.workload.global_batch
    return replace(scenario, samples=total, iterations=scenario.iterations * len(scenario.spec.nodes))
