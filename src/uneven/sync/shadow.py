"""ShadowSync: the exchanges of any policy in the background. Pure."""

from __future__ import annotations

from dataclasses import replace

from uneven.core.actions import Moment, Payload, StepPlan
from uneven.core.views import SyncView
from uneven.errors import ConfigError
from uneven.sync.base import Facts, Pace, SyncPolicy, policies


class Shadow(SyncPolicy):
    """The exchanges of ``inner`` beside the training, where nobody waits (ShadowSync, Zheng et al. 2020).

    An exchange is not started while its predecessor is under way, so with one every step a shadow meets the others
    as often as the links allow, as in the paper, which has no fixed period. What was learnt meanwhile is kept.
    ``Shadow("easgd")``, ``Shadow("ma")`` and ``Shadow("bmuf")`` are its S-EASGD, S-MA and S-BMUF.

    Args:
        inner: what is exchanged. A name stands for that policy with ``every=1`` unless it says otherwise.

    Raises:
        ConfigError: ``inner`` makes no sense in the background.
        UnknownNameError: no such policy.
    """

    def __init__(self, inner: str | SyncPolicy = "easgd") -> None:
        self.inner = policies.resolve(inner, every=1)
        _check(self.inner)
        self.evaluated = self.inner.evaluated
        self._last: tuple[StepPlan, StepPlan] | None = None

    def plan(self, view: SyncView) -> StepPlan:
        """The plan of ``inner``, moved into the background and without its waits.

        Raises:
            ConfigError: ``inner``, which states no facts, exchanges a gradient: it cannot arrive after its step.
        """
        plan = self.inner.plan(view)
        last = self._last
        if last is None or last[0] is not plan:
            moved = tuple(replace(one, moment=Moment.BACKGROUND) for one in plan.exchanges)
            last = self._last = (plan, StepPlan(exchanges=moved))
        return last[1]

    @property
    def facts(self) -> Facts | None:
        """Those of ``inner``, but nobody waits."""
        inner = self.inner.facts
        if inner is None:
            return None
        moves = inner.moves.removesuffix(", after the optimizer")
        return replace(
            inner,
            pace=Pace.OWN,
            moves=f"{moves}, or as often as the link allows, in the background",
            waits="nobody",
            stale="what the others did since the last exchange was begun, by the steps that an exchange takes",
            lost_when_one_dies="its steps since its last finished exchange; "
            + ("the others' exchanges stop" if inner.stops else "the others go on"),
        )


def _check(inner: SyncPolicy) -> None:
    """Refuse what cannot be done in the background.

    Raises:
        ConfigError: naming the policy, why, and the nearest one that can.
    """
    facts = inner.facts
    if facts is None:
        return  # its plans are checked as they are made
    if Payload.GRADIENT in facts.payloads:
        near = "shadow:asp" if facts.pace is Pace.QUORUM else f"shadow:ma:every={facts.every}"
        raise ConfigError(
            f"shadow: {inner!r} exchanges gradients, and a gradient of this step cannot arrive after it: use {near}, "
            f"which exchanges parameters or movements"
        )
    if facts.pace is Pace.BOUNDED:
        raise ConfigError(
            f"shadow: {inner!r} bounds how far workers lead, and in the background nobody waits: use shadow:asp, or "
            f"{inner!r} without a shadow"
        )
    if facts.pace is Pace.GROUPS:
        raise ConfigError(
            f"shadow: {inner!r} forms its groups by the workers' clocks. Where nobody waits these drift apart, and "
            f"groups could wait for each other in a ring: use shadow:ma:every={facts.every}"
        )
