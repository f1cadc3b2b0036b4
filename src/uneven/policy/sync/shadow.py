"""ShadowSync: the exchanges of any policy in the background."""

from dataclasses import replace

from uneven.errors import ConfigError
from uneven.policy.core.actions import Background, Combined, Moment, Payload, StepPlan
from uneven.policy.core.views import SyncView
from uneven.policy.sync._parts import number
from uneven.policy.sync.sync_policy import Facts, Pace, SyncPolicy, WrappingPolicy, policies

_ALPHA = {"delta": 1.0, "lerp": 0.5}  # way to write back → its default of α [default]


_SHOWN = 30  # the longer period of the paper's rivals with a fixed one, FR-EASGD-30 [recalled]
LOAD = 0.005  # [default]: exchanges should hardly slow the training down


class Shadow(WrappingPolicy):
    """Runs the exchanges of ``inner`` in the background, so that no worker waits (ShadowSync, Zheng et al. 2020).

    An exchange starts only when the previous one has finished. With one every step, exchanges take place as often as
    the links allow, as in the paper, which has no fixed period. ``Shadow("easgd")``, ``Shadow("ma")`` and
    ``Shadow("bmuf")`` are its S-EASGD, S-MA and S-BMUF.

    Args:
        inner: policy to run in the background. A name means that policy with ``every=1`` unless it says otherwise.
        write_back: "delta" adds α times the change that the exchange brought and keeps what was learned in between;
            "lerp", ShadowSync's own [recalled], moves the replica by α toward the outcome and loses α of that.
        alpha: α, above 0 and at most 1. With "lerp" 1 would lose all that was learned in between, so take less.
        load: part of the training's time that exchanges may cost, above 0 and at most 1, as measured: without a spare
            processor exchanges are rarer. 1 never pauses, as in the paper, whose machines had spare processors.
    """

    tried = ("easgd", "ma")

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
        self._background = Background(load=self.load, alpha=self.alpha, lerp=write_back == "lerp")
        self._last: tuple[StepPlan, StepPlan] | None = None

    def plan(self, view: SyncView) -> StepPlan:
        plan = self.inner.plan(view)
        last = self._last
        # Plans are cached by identity, as the inner policy caches its own: the same object gets the same answer.
        if last is None or last[0] is not plan:
            if any(one.piece is not None for one in plan.exchanges):
                # Asynchronous workers would send different pieces at the same time.
                raise ConfigError(
                    f"shadow: {self.inner!r} exchanges pieces, which workers at their own pace would mix up: give "
                    "it a delay, as in diloco:fragments=4,delay=2"
                )
            moved = tuple(replace(one, moment=Moment.BACKGROUND, background=self._background) for one in plan.exchanges)
            last = self._last = (plan, StepPlan(exchanges=moved))
        return last[1]

    @property
    def constant(self) -> bool:
        return self.inner.constant

    @property
    def facts(self) -> Facts | None:
        inner = self.inner.facts
        if inner is None:
            return None
        moves = inner.moves.removesuffix(", after the optimizer")
        return replace(
            inner,
            pace=Pace.OWN,
            moves=f"{moves}, or as the link allows, in the background",
            waits="no worker",
            shown=_SHOWN,
            stale="the others' steps since the last exchange began, as many as an exchange takes",
            lost_when_one_dies="its steps since its last finished exchange; "
            + ("the others' exchanges stop" if inner.stops else "the others continue"),
        )


def _check(inner: SyncPolicy) -> None:
    """Raise ``ConfigError`` for a policy that cannot run in the background."""
    facts = inner.facts
    if facts is None:
        return  # its plans are checked as they are made
    if Payload.GRADIENT in facts.payloads:
        near = "shadow:asp" if facts.pace is Pace.QUORUM else f"shadow:ma:every={facts.every}"
        raise ConfigError(
            f"shadow: {inner!r} exchanges gradients, which cannot arrive after their step: use {near}, which "
            "exchanges parameters or movements"
        )
    if facts.pace is Pace.BOUNDED:
        raise ConfigError(
            f"shadow: {inner!r} bounds the lead of workers, but in the background no worker waits: use shadow:asp, "
            f"or {inner!r} without shadow"
        )
    if facts.pace is Pace.GROUPS:
        raise ConfigError(
            f"shadow: {inner!r} groups workers by their clocks, which drift apart in the background, so groups "
            f"could wait for each other in a ring: use shadow:ma:every={facts.every}"
        )


def _check_answers(inner: SyncPolicy) -> None:
    """Raise ``ConfigError`` if ``alpha`` and ``write_back`` do not apply."""
    facts = inner.facts
    # A parameter server answers with the change to make, so there is no outcome to write back in another way.
    probe = inner.plan(SyncView(rank=0, clock=(1 if facts is None else facts.every) - 1, members=(0, 1)))
    pulls = any(one.merge.combined is Combined.CENTRE for one in probe.exchanges)
    if pulls or (facts is not None and facts.pace is Pace.OWN):
        raise ConfigError(
            f"shadow: alpha and write_back apply to merges among workers, as in ma or bmuf; {inner!r} has a "
            "parameter server: use its own options, as in shadow:easgd:alpha=0.3"
        )
