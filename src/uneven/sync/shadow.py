"""ShadowSync: the exchanges of any policy in the background. Pure."""

from __future__ import annotations

from dataclasses import replace

from uneven.core.actions import Combined, Moment, Payload, StepPlan, WriteBack
from uneven.core.views import SyncView
from uneven.errors import ConfigError
from uneven.sync._parts import number
from uneven.sync.base import Facts, Pace, SyncPolicy, WrappingPolicy, policies

_ALPHA = {"delta": 1.0, "lerp": 0.5}
"""The ways to write back, with our default of α for each."""


LOAD = 0.005
"""Our default: a shadow is for those who do not want the training to be held up."""


class Shadow(WrappingPolicy):
    """The exchanges of ``inner`` beside the training, where no worker waits (ShadowSync, Zheng et al. 2020).

    An exchange is not started while its predecessor is under way, so with one every step a shadow meets the others
    as often as the links allow, as in the paper, which has no fixed period. What was learnt meanwhile is kept.
    ``Shadow("easgd")``, ``Shadow("ma")`` and ``Shadow("bmuf")`` are its S-EASGD, S-MA and S-BMUF.

    Args:
        inner: what is exchanged. A name stands for that policy with ``every=1`` unless it says otherwise.
        write_back: "delta" adds α times the change that the exchange brought, and keeps what was learnt meanwhile;
            "lerp", ShadowSync's own (recalled), goes α of the way to the outcome and loses α of that.
        alpha: α, above 0 and at most 1. With "lerp" 1 would lose all that was learnt meanwhile, back to back
            everything, so take less.
        load: part of its time that exchanges may cost the training, above 0 and at most 1, ours. What they cost is
            measured: where a worker has a processor to spare they follow each other nearly without a pause, where it
            has none they are rarer. 1 is back to back in any case, as in the paper, whose machines had them to spare.

    Raises:
        ConfigError: ``inner`` makes no sense in the background, or an argument out of range.
        UnknownNameError: no such policy.
    """

    def __init__(
        self,
        inner: str | SyncPolicy = "easgd",
        *,
        write_back: str = "delta",
        alpha: float | None = None,
        load: float = LOAD,
    ) -> None:
        super().__init__(policies.resolve(inner, every=1))
        _check(self.inner)
        if alpha is not None or write_back != "delta":
            _check_answers(self.inner)
        if write_back not in _ALPHA:
            raise ConfigError(f"shadow: write_back = {write_back!r} must be one of: {', '.join(_ALPHA)}")
        self.write_back = write_back
        self.alpha = number("shadow", "alpha", _ALPHA[write_back] if alpha is None else alpha, "(0, 1]")
        self.load = number("shadow", "load", load, "(0, 1]")
        self._back = WriteBack(self.alpha, lerp=write_back == "lerp")
        self._last: tuple[StepPlan, StepPlan] | None = None

    def plan(self, view: SyncView) -> StepPlan:
        """The plan of ``inner``, moved into the background and without its waits.

        Raises:
            ConfigError: ``inner``, which states no facts, exchanges a gradient: it cannot arrive after its step.
        """
        plan = self.inner.plan(view)
        last = self._last
        if last is None or last[0] is not plan:
            if any(one.piece is not None for one in plan.exchanges):
                raise ConfigError(
                    f"shadow: {self.inner!r} exchanges pieces, which workers at their own pace would mix up: give it a "
                    f"delay of its own, as in diloco:fragments=4,delay=2"
                )
            moved = tuple(
                replace(one, moment=Moment.BACKGROUND, write_back=self._back, load=self.load) for one in plan.exchanges
            )
            last = self._last = (plan, StepPlan(exchanges=moved))
        return last[1]

    @property
    def constant(self) -> bool:
        return self.inner.constant

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


def _check_answers(inner: SyncPolicy) -> None:
    """Refuse ways to write back where the parameter server answers with what is to be done.

    Raises:
        ConfigError: naming the policy and the option that it has instead.
    """
    facts = inner.facts
    probe = inner.plan(SyncView(rank=0, clock=(1 if facts is None else facts.every) - 1, members=(0, 1)))
    pulls = any(one.merge.combined is Combined.CENTRE for one in probe.exchanges)
    if pulls or (facts is not None and facts.pace is Pace.OWN):
        raise ConfigError(
            f"shadow: alpha and write_back are for outcomes that the workers come to among themselves, as with ma or "
            f"bmuf; {inner!r} has a parameter server and says by options of its own what follows, as in "
            f"shadow:easgd:alpha=0.3"
        )
