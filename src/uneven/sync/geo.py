"""Gaia: inside a site BSP or SSP, between sites travels what has become significant. Pure."""

from __future__ import annotations

import math
from dataclasses import replace

from uneven.core.actions import Add, Exchange, Moment, Payload, Significant, StepPlan, Via, Wait
from uneven.core.views import SyncView
from uneven.errors import ConfigError
from uneven.sync._parts import PerRank, flag, number, whole
from uneven.sync.base import Evaluated, Facts, Pace, SyncPolicy, WrappingPolicy
from uneven.sync.groups import by_site

SCHEDULES = ("rate", "sqrt", "linear", "fixed")


class Geo(WrappingPolicy):
    """Gaia (Hsieh et al. 2017): BSP or SSP inside each site; between sites, significant entries of each step.

    Each site sums up what its own steps have moved and was not sent. After each step it sends the entries of that sum
    whose size is more than ``threshold`` of the parameter's, and sets them to zero; what it hears from others it adds
    to its replica. Before the next step everybody has heard everybody, as in the released code with no slack. So
    threshold 0 is BSP, and what a site has not sent is in its own replica and in no other one's.

    Movements of sites are added, not averaged. With ``divide`` each of K sites steps with 1 / K of the learning rate,
    and with its gradient weighted by its samples, so the learning rate stays BSP's; the released code leaves that to
    its configurations (0.01 / K). Momentum and all other state of the optimizer stay with their site.

    With one site it is the inner policy. Running statistics of batch norm stay with their worker.

    Under ``geo:ssp:staleness=S`` each site has a parameter server, and its workers go at their own pace within S. What
    its copy has moved is summed up and sent when the site's clock advances, the least of its workers' clocks; what
    others send is added to the copy. A step waits until all here have finished all but S of the steps before it, and
    all elsewhere all but S and the lead. ``divide`` then scales each movement by 1 / workers of all sites, in place of
    1 / workers of its own. With S = 0 and threshold 0 it is BSP on plain SGD.

    Args:
        inner: inside a site: what averages gradients on every step, or what bounds how far workers lead.
        threshold: v, at least 0, as a part of the parameter: 0.01 is 1 %.
        schedule: how v goes on: "rate", with the learning rate (v · η_t / η_0, as the released code does); "sqrt",
            v / √t (the theory); "linear", to ``lower`` within ``within`` steps; "fixed".
        lower, within: of "linear".
        flush: every so many steps all that is held is sent; 0 never.
        divide: divide the learning rate by the number of sites; false where you have done so.
        bits: of a value that travels, 32 or 16; what rounding takes away stays and adds up.
        mbit: that a site may send to the others, Mbit/s; 0 is no limit. The threshold goes up by 0.005 where more was
            sent than 1.1 of that, and back where less than 0.9, as in the released code.
        most: the threshold up to which it goes for that.
        soft: where less than 0.9 of ``mbit`` was sent, the threshold goes down to this part of v, so that more travels
            than is significant (Gaia's soft threshold); 1 is not at all.
        hubs: sites whose names begin alike, up to a slash, are a group, as us/east and us/west: inside one everybody
            tells everybody, and its first site hands on between groups. No site is then told the same entry twice, and
            what several have changed passes a line between groups once. Not with a lead.
        lead: steps that a site may be ahead of what it has heard (data-centre staleness, the mirror clock). Messages
            are under way while it trains; a step waits for those of the step so many before. Refused where momentum
            makes it unstable, see :mod:`uneven.sync.stability`. 0 is the released code.

    Raises:
        ConfigError: an argument out of range, or an inner policy that does neither.
    """

    evaluated: Evaluated = Evaluated.MEAN

    def __init__(
        self, inner: str | SyncPolicy = "bsp", *, threshold: float = 0.01, schedule: str = "rate", lower: float = 0.0,
        within: int = 0, flush: int = 0, divide: bool = True, bits: int = 32, mbit: float = 0.0, most: float = 0.0,
        soft: float = 1.0, hubs: bool = False, lead: int = 0, barrier_kb: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(inner)
        self._paced = _bounds_the_lead(self.inner)
        if self._paced:
            self.evaluated = Evaluated.CENTRE
        self.threshold = number("geo", "threshold", threshold, "[0, inf)")
        if schedule not in SCHEDULES:
            raise ConfigError(f"geo: schedule = {schedule!r} must be one of: {', '.join(SCHEDULES)}")
        self.schedule = schedule
        self.lower = number("geo", "lower", lower, "[0, inf)")
        self.within = whole("geo", "within", within, least=0)
        if (schedule == "linear") != (self.within > 0):
            raise ConfigError(
                f"geo: schedule = {schedule!r} with within = {within}: the steps in which the threshold goes to "
                f"lower = {lower:g} belong to 'linear', and to no other schedule"
            )
        self.flush = whole("geo", "flush", flush, least=0)
        self.divide = flag("geo", "divide", divide)
        self.bits = whole("geo", "bits", bits, least=1)
        self.mbit = number("geo", "mbit", mbit, "[0, inf)")
        self.most = number("geo", "most", most, "[0, inf)")
        self.soft = number("geo", "soft", soft, "(0, 1]")
        self.hubs = flag("geo", "hubs", hubs)
        if self._paced and (self.hubs or barrier_kb):
            raise ConfigError(
                f"geo: {'hubs' if self.hubs else 'barrier_kb'} with {self.inner!r} inside a site: parameter servers of "
                f"sites tell each other directly, and wait for steps only; leave it out, or take geo:bsp"
            )
        if self.hubs and lead:
            raise ConfigError(f"geo: lead = {lead} with hubs: what they hand on belongs to one step; take one of both")
        self.lead = whole("geo", "lead", lead, least=0)
        self.barrier_kb = number("geo", "barrier_kb", barrier_kb, "[0, inf)")
        if self.barrier_kb and not self.lead:
            raise ConfigError(
                f"geo: barrier_kb = {barrier_kb:g} without a lead: every step waits for all of the step before, so "
                f"there is nothing to bar; give a lead of at least 1, or leave barrier_kb away"
            )
        self._significant = Significant(
            self.threshold, by_rate=schedule == "rate", bits=self.bits, mbit_per_s=self.mbit, most=self.most,
            soft=self.soft,
        )  # fmt: skip
        self._homes = PerRank(_homes, looks_at_sites=True)
        self._made: dict[int, tuple[object, StepPlan]] = {}

    def plan(self, view: SyncView) -> StepPlan:
        """The inner plan at home, then this step's significant movements to all sites."""
        homes, home = self._homes(view, 0)
        near = self.inner.plan(view._replace(members=home))
        if len(homes) == 1:
            return near
        exchanges, asked = near.exchanges, (near.exchanges, homes, self._selection(view.clock))
        known = self._made.get(view.rank)
        if known is None or known[0] != asked:
            if self._paced and self.divide:
                exchanges = tuple(_scaled(one, len(home) / len(view.members)) for one in exchanges)
            elif not self._paced and len(home) == 1:
                exchanges = ()
            far = self._far(view, *asked[1:])
            plan = StepPlan(exchanges=(*exchanges, far), divided=self.divide and not self._paced)
            known = self._made[view.rank] = asked, plan
        waits = self._waits(view, near)
        return replace(known[1], waits=waits) if waits else known[1]

    def _far(self, view: SyncView, homes: tuple[tuple[int, ...], ...], select: Significant) -> Exchange:
        return Exchange(
            payload=Payload.DELTA, members=view.members, parties=homes, merge=Add(), moment=Moment.STEP,
            via=Via.SERVER if self._paced else Via.GROUP, select=select, lead=self.lead,
            groups=_groups(view, homes) if self.hubs else (), barrier_bytes=1e3 * self.barrier_kb,
        )  # fmt: skip

    def _waits(self, view: SyncView, near: StepPlan) -> tuple[Wait, ...]:
        """What is finished here is finished elsewhere, too, but for the lead."""
        if not self._paced:
            due = view.clock - self.lead
            return (Wait(view.members, due),) if self.lead and due > 0 else ()
        far = tuple(Wait(view.members, one.clock - self.lead) for one in near.waits if one.clock > self.lead)
        return (*near.waits, *far) if self.lead else far

    def _selection(self, clock: int) -> Significant:
        step = clock + 1
        if self.flush and step % self.flush == 0:
            return replace(self._significant, threshold=0.0)
        if self.schedule == "sqrt":
            return replace(self._significant, threshold=self.threshold / math.sqrt(step))
        if self.schedule == "linear":
            part = min(1.0, clock / self.within)
            return replace(self._significant, threshold=self.threshold + part * (self.lower - self.threshold))
        return self._significant

    @property
    def constant(self) -> bool:
        """Where the threshold stays."""
        return self.inner.constant and not self.flush and not self.lead and self.schedule in ("rate", "fixed")

    @property
    def facts(self) -> Facts | None:
        """A site is one worker to the others."""
        inner = self.inner.facts
        assert inner is not None
        entries = f"the entries that have moved by more than {self.threshold:.3g} of their value"
        lead = f", other sites no more than {self.lead} steps behind" if self.lead else ""
        lost = "what its site held back"
        if self._paced:
            return replace(
                inner,
                stops=True,
                moves=f"{inner.moves}, inside a site; between sites {entries}, after each step of the site's slowest",
                waits=f"{inner.waits}; for all sites, as for its own{lead}",
                stale=f"{inner.stale}" + (f", at other sites {self.lead} more" if self.lead else "")
                + "; of the rest of theirs, what each site holds back until it is significant",
                lost_when_one_dies=f"the step that it was about to push; {lost}, if it kept its copy; the others stop",
            )  # fmt: skip
        return replace(
            inner,
            payloads=(Payload.GRADIENT, Payload.DELTA),
            pace=Pace.TOGETHER,
            moves=f"the gradient inside a site, every step; between sites {entries}, every step, after the optimizer",
            waits=f"all workers for the slowest, every step{lead}"
            + (f", none of them beyond {self.barrier_kb:g} kB under way" if self.barrier_kb else ""),
            stale=(f"what was significant in the last {self.lead} steps elsewhere" if self.lead else
                   "nothing that was significant") + "; of the rest, what each site holds back until it is",
            lost_when_one_dies=f"{lost}, if it was alone there; the others stop at once",
        )


def _bounds_the_lead(inner: SyncPolicy) -> bool:
    """Whether workers of a site go at their own pace, within a bound.

    Raises:
        ConfigError: they do something else than that or BSP; naming the policy and some that will do.
    """
    facts = inner.facts
    if facts is not None and facts.payloads == (Payload.DELTA,) and facts.pace is Pace.BOUNDED:
        return True
    if facts is not None and facts.payloads == (Payload.GRADIENT,) and facts.pace is Pace.TOGETHER:
        return False
    raise ConfigError(
        f"geo: {inner!r} inside a site: a site speaks with one voice, so either its replicas are equal after every "
        f"step, as under bsp, or its parameter server's copy has a clock that bounds the lead, as under ssp: use "
        f"geo:bsp or geo:ssp:staleness=2, or sparse-local for steps apart"
    )


def _scaled(one: Exchange, part: float) -> Exchange:
    """
    Raises:
        ConfigError: it does not add what it scales.
    """
    scale = one.merge.served(one.payload)
    if scale is None or one.merge != Add(scale):
        raise ConfigError(f"geo: {one.merge!r} inside a site adds no movements, which divide=true scales: use ssp")
    return replace(one, merge=Add(scale * part))


def _groups(view: SyncView, homes: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """The first of each site, by what its name begins with."""
    found: dict[str, list[int]] = {}
    for home in homes:
        found.setdefault(view.sites.get(home[0], "").partition("/")[0], []).append(home[0])
    return tuple(tuple(group) for group in found.values())


def _homes(view: SyncView, phase: int) -> dict[int, tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]]:
    """Rank → all sites' members, and those of its own."""
    homes = by_site(view)
    return {rank: (homes, home) for home in homes for rank in home}
