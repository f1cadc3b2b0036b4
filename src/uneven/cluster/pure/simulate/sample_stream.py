"""Samples for asynchronous workers."""

from __future__ import annotations

from dataclasses import replace

from uneven.cluster.pure.simulate.virtual_world import Scenario
from uneven.policy.sync import Pace


def streamed(scenario: Scenario) -> Scenario:
    """Return the scenario with an equal number of samples under every policy, as comparisons need."""
    facts = scenario.policy.facts
    if facts is None or facts.pace not in (Pace.OWN, Pace.BOUNDED) or scenario.samples is not None:
        return scenario
    # Asynchronous workers share one order with the samples of BSP in the same iterations; the iterations only bound
    # them.
    total = scenario.iterations * scenario.spec.workload.global_batch
    return replace(scenario, samples=total, iterations=scenario.iterations * len(scenario.spec.nodes))
