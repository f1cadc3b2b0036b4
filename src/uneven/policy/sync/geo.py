"""Gaia: BSP or SSP inside a site; between sites only significant entries travel."""

import math
from dataclasses import replace

from uneven.errors import ConfigError
from uneven.policy.core.actions import Add, Exchange, Far, Moment, Payload, Significant, StepPlan, Via, Wait
from uneven.policy.core.views import SyncView
from uneven.policy.sync._parts import PerRank, flag, number, whole
from uneven.policy.sync.groups import by_site
from uneven.policy.sync.sync_policy import EvaluationModel, Facts, Pace, SyncPolicy, WrappingPolicy

SCHEDULES = ("rate", "sqrt", "fixed")  # of the threshold


class Geo(WrappingPolicy):
    """Gaia (Hsieh et al. 2017): BSP or SSP inside each site; between sites, significant entries of each step.

    Each site accumulates its movements that it has not sent. After each step it sends the entries that exceed
    ``threshold`` times the parameter and zeroes them; it adds other sites' entries to its replica. Before the next step
    every site has received all messages, as in the released code with no slack. So threshold 0 is BSP. Movements are
    added, not averaged. Optimizer state and running statistics of batch norm are not exchanged. With one site it is the
    inner policy.

    Under ``geo:ssp:staleness=S`` each site has a parameter server, and its workers train within S steps of each other.
    The site sends the movement of its copy when the least of its workers' clocks advances, and adds received entries to
    the copy. A step waits until this site's workers have finished all but S of the steps before it, and other sites all
    but S + lead. With S = 0 and threshold 0 it is BSP on plain SGD.

    Args:
        inner: policy inside a site: one that averages gradients on every step, or one that bounds staleness.
        threshold: v, at least 0, relative to the parameter: 0.01 is 1 %.
        schedule: how v changes: "rate", with the learning rate (v · η_t / η_0, as in the released code); "sqrt",
            v / √t (the theory); "fixed".
        flush: steps between two sends of all unsent entries; 0 is never.
        divide: each of K sites steps with 1 / K of the learning rate and weights its gradient by its samples, so that
            BSP's learning rate fits; under ssp, each movement is scaled by 1 / all workers. The released code has 0.01
            / K.
        bits: per value sent, 32 or 16; rounding errors are kept and accumulate.
        mbit: limit of a site's traffic to the others, Mbit/s; 0 is none. The threshold rises by 0.005 if more than 1.1
            of the limit was sent, up to ``most``, and falls back if less than 0.9 was, as in the released code.
        soft: if less than 0.9 of ``mbit`` was sent, the threshold falls to this part of v (Gaia's soft threshold).
        hubs: the first site of each group (us/east and us/west are in group us) forwards between groups, so no site
            receives an entry twice. Changes of several sites cross between groups once. Not with a lead.
        lead: steps that a site may be ahead of the messages it has received (the mirror clock); 0 is the released code.
            An error if momentum makes it unstable, see :mod:`uneven.policy.sync.compatibility`.
        barrier_kb: kB that may be in transit before workers wait (the selective barrier); 0 means no limit. Needs a
        lead.

    Raises:
        ConfigError: an argument out of range, or an inner policy of another kind.
    """

    evaluation_model: EvaluationModel = EvaluationModel.MEAN

    def __init__(
        self,
        inner: str | SyncPolicy = "bsp",
        *,
        threshold: float = 0.01,
        schedule: str = "rate",
        flush: int = 0,
        divide: bool = True,
        bits: int = 32,
        mbit: float = 0.0,
        most: float = 0.0,
        soft: float = 1.0,
        hubs: bool = False,
        lead: int = 0,
        barrier_kb: float = 0.0,
    ) -> None:
        super().__init__(inner)
        self._paced = _bounds_the_lead(self.inner)
        if self._paced:
            self.evaluation_model = EvaluationModel.CENTRE
        self.threshold = number("geo", "threshold", threshold, "[0, inf)")
        if schedule not in SCHEDULES:
            raise ConfigError(f"geo: schedule = {schedule!r} must be one of: {', '.join(SCHEDULES)}")
        self.schedule = schedule
        self.flush = whole("geo", "flush", flush, least=0)
        self.divide = flag("geo", "divide", divide)
        self.bits = whole("geo", "bits", bits, least=1)
        self.mbit = number("geo", "mbit", mbit, "[0, inf)")
        self.most = number("geo", "most", most, "[0, inf)")
        self.soft = number("geo", "soft", soft, "(0, 1]")
        self.hubs = flag("geo", "hubs", hubs)
        # Only replicas' messages are forwarded; servers send to servers directly.
        if self._paced and (self.hubs or barrier_kb):
            raise ConfigError(
                f"geo: {'hubs' if self.hubs else 'barrier_kb'} with {self.inner!r} inside a site is not supported, "
                "because servers of sites exchange directly and wait for steps only: leave it out, or use geo:bsp"
            )
        if self.hubs and lead:
            raise ConfigError(
                f"geo: lead = {lead} with hubs: hubs forward the movements of one step; use one of the two"
            )
        self.lead = whole("geo", "lead", lead, least=0)
        self.barrier_kb = number("geo", "barrier_kb", barrier_kb, "[0, inf)")
        if self.barrier_kb and not self.lead:
            raise ConfigError(
                f"geo: barrier_kb = {barrier_kb:g} without a lead: every step already waits for the one before it; "
                "give a lead of at least 1, or leave barrier_kb out"
            )
        self._significant = Significant(
            self.threshold,
            by_rate=schedule == "rate",
            bits=self.bits,
            mbit_per_s=self.mbit,
            most=self.most,
            soft=self.soft,
        )
        self._homes = PerRank(_homes, looks_at_sites=True)
        self._made: dict[int, tuple[object, StepPlan]] = {}

    def plan(self, view: SyncView) -> StepPlan:
        homes, home = self._homes(view, 0)
        near = self.inner.plan(view._replace(members=home))
        if len(homes) == 1 and not view.changes:
            return near
        exchanges, asked = near.exchanges, (near.exchanges, homes, self._selection(view.clock), view.changes)
        # Equal in most steps: the threshold changes only with a flush or "sqrt".
        known = self._made.get(view.rank)
        if known is None or known[0] != asked:
            if self._paced and self.divide:
                exchanges = tuple(_scaled(one, len(home) / len(view.members)) for one in exchanges)
            # A single worker has no peer to average with; its gradient is already the site's.
            elif not self._paced and len(home) == 1 and not view.changes:
                exchanges = ()
            far = self._far(view, *asked[1:3])
            plan = StepPlan(exchanges=(*exchanges, far), divided=self.divide and not self._paced)
            known = self._made[view.rank] = asked, plan
        # Waits change with every step, so they are added to the cached plan.
        waits = self._waits(view, near)
        return replace(known[1], waits=waits) if waits else known[1]

    def _far(self, view: SyncView, homes: tuple[tuple[int, ...], ...], select: Significant) -> Exchange:
        return Exchange(
            payload=Payload.DELTA,
            members=view.members,
            parties=homes,
            merge=Add(),
            moment=Moment.STEP,
            via=Via.SERVER if self._paced else Via.GROUP,
            select=select,
            far=Far(
                lead=self.lead, hubs=_groups(view, homes) if self.hubs else (), barrier_bytes=1e3 * self.barrier_kb
            ),
        )

    def _waits(self, view: SyncView, near: StepPlan) -> tuple[Wait, ...]:
        # What is finished here must be finished at the other sites too, up to the lead.
        if not self._paced:
            due = view.clock - self.lead
            return (Wait(view.members, due),) if self.lead and due > 0 else ()
        far = tuple(Wait(view.members, one.clock - self.lead) for one in near.waits if one.clock > self.lead)
        return (*near.waits, *far) if self.lead else far

    def _selection(self, clock: int) -> Significant:
        step = clock + 1
        if self.flush and step % self.flush == 0:
            return replace(self._significant, threshold=0.0, mbit_per_s=0.0, most=0.0, soft=1.0)  # at any bandwidth
        if self.schedule == "sqrt":
            return replace(self._significant, threshold=self.threshold / math.sqrt(step))
        return self._significant

    @property
    def constant(self) -> bool:
        return self.inner.constant and not self.flush and not self.lead and self.schedule in ("rate", "fixed")

    @property
    def facts(self) -> Facts | None:
        inner = self.inner.facts
        assert inner is not None
        entries = f"the entries that moved by more than {self.threshold:.3g} of their value"
        lead = f", other sites no more than {self.lead} steps behind" if self.lead else ""
        lost = "the unsent entries of its site"
        if self._paced:
            return replace(
                inner,
                stops=True,
                moves=f"{inner.moves}, inside a site; between sites {entries}, after each step of the site's slowest",
                waits=f"{inner.waits}; for all sites, as for its own{lead}",
                stale=f"{inner.stale}"
                + (f", at other sites {self.lead} more" if self.lead else "")
                + "; their other entries, until they are significant",
                lost_when_one_dies=f"the step that it was about to push; {lost}, if it kept its copy; the others stop",
            )
        return replace(
            inner,
            payloads=(Payload.GRADIENT, Payload.DELTA),
            pace=Pace.TOGETHER,
            moves=f"the gradient inside a site, every step; between sites {entries}, every step, after the optimizer",
            waits=f"all workers for the slowest, every step{lead}"
            + (f", none with more than {self.barrier_kb:g} kB in transit" if self.barrier_kb else ""),
            stale=(
                f"the significant entries of the last {self.lead} steps elsewhere"
                if self.lead
                else "no significant entry"
            )
            + "; other entries, until they are significant",
            lost_when_one_dies=f"{lost}, if it was alone there; the others stop immediately",
        )


def _bounds_the_lead(inner: SyncPolicy) -> bool:
    """Return True for bounded staleness inside a site, False for BSP; raise ``ConfigError`` for any other policy."""
    facts = inner.facts
    if facts is not None and facts.payloads == (Payload.DELTA,) and facts.pace is Pace.BOUNDED:
        return True
    if facts is not None and facts.payloads == (Payload.GRADIENT,) and facts.pace is Pace.TOGETHER:
        return False
    raise ConfigError(
        f"geo: {inner!r} inside a site: its replicas must be equal after every step (bsp), or its parameter server "
        "must bound the lead (ssp): use geo:bsp, geo:ssp:staleness=2, or sparse-local"
    )


def _scaled(one: Exchange, part: float) -> Exchange:
    scale = one.merge.served(one.payload)
    if scale is None or one.merge != Add(scale):
        raise ConfigError(f"geo: {one.merge!r} inside a site does not add movements, which divide=true scales: use ssp")
    return replace(one, merge=Add(scale * part))


def _groups(view: SyncView, homes: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    # Only the first rank of each site sends, grouped by the prefix of the site's name.
    found: dict[str, list[int]] = {}
    for home in homes:
        found.setdefault(view.sites.get(home[0], "").partition("/")[0], []).append(home[0])
    return tuple(tuple(group) for group in found.values())


def _homes(view: SyncView, phase: int) -> dict[int, tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]]:
    homes = by_site(view)
    return {rank: (homes, home) for home in homes for rank in home}
