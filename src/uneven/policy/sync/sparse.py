"""Exchanges of the largest entries of movements: SparseLoCo's form, and top-k after each step."""

from uneven.errors import ConfigError
from uneven.policy.core.actions import Exchange, Far, Mean, Moment, Payload, StepPlan, TopK
from uneven.policy.core.views import SyncView
from uneven.policy.sync._parts import PerRank, flag, number, whole
from uneven.policy.sync.bsp import bsp_plan, gradient_mean
from uneven.policy.sync.groups import by_site as members_by_site
from uneven.policy.sync.local import often
from uneven.policy.sync.sync_policy import EvaluationModel, Facts, Pace, SyncPolicy


class SparseLocal(SyncPolicy):
    """Local steps, then the mean of the largest entries of their movements, with error feedback.

    After the last step of a block each worker adds its movement to its unsent entries. It sends the largest ones of
    each chunk and keeps the rest. All workers continue from the start of the block plus the mean of the sent entries,
    weighted by samples, so replicas are equal. This is the form of SparseLoCo (2025): top-k of chunks, values of 2
    bits, error feedback, no outer momentum. The levels of the two bits are ours. Density 1 with 32 bits is local SGD.

    With ``delay`` the workers train on during an exchange, and its outcome is added to their steps in between: x +=
    outcome − the replica when it was sent.

    Args:
        every: steps of a block.
        density: part of the entries that is sent, above 0 and at most 1.
        bits: per value: 2, 16 or 32.
        chunk: entries of a chunk, at most 4,096.
        by_site: with several sites, the workers of each average gradients on every step and send one message.
        delay: steps, below ``every``.
        narrow: the site whose link is narrow, or several (``home/lab`` on the command line). Only its workers select;
            those of other sites send all entries in 32 bits. Without it, all select.
    """

    evaluation_model = EvaluationModel.MEAN
    _name = "sparse-local"

    def __init__(
        self,
        *,
        every: int = 4,
        density: float = 0.1,
        bits: int = 2,
        chunk: int = 4096,
        by_site: bool = True,
        delay: int = 0,
        narrow: str | tuple[str, ...] = (),
    ) -> None:
        self.every = whole(self._name, "every", every, least=1)
        self.delay = whole(self._name, "delay", delay, least=0)
        if self.delay >= self.every:
            raise ConfigError(
                f"{self._name}: delay = {self.delay} with every = {self.every}: use a delay below {self.every}, so "
                "that each exchange ends before the next one"
            )
        self.density = number(self._name, "density", density, "(0, 1]")
        self.bits = whole(self._name, "bits", bits, least=1)
        self.chunk = whole(self._name, "chunk", chunk, least=1)
        self.by_site = flag(self._name, "by_site", by_site)
        self.narrow = (narrow,) if isinstance(narrow, str) else tuple(narrow)
        self._select = TopK(self.density, self.chunk, self.bits)
        self._plans = PerRank(self._make_plans, looks_at_sites=self.by_site or bool(self.narrow))

    def plan(self, view: SyncView) -> StepPlan:
        return self._plans(view, int((view.clock + 1) % self.every == 0) + 2 * view.changes)

    @property
    def constant(self) -> bool:
        return self.every == 1

    @property
    def facts(self) -> Facts:
        inside = ("the gradient inside a site, every step; ", "a site for its slowest worker, every step; ")
        moves, waits = inside if self.by_site else ("", "")
        late = f", {self.delay} steps later" if self.delay else ""
        behind = self.every - 1 + self.delay
        return Facts(
            payloads=(Payload.GRADIENT, Payload.DELTA) if self.by_site else (Payload.DELTA,),
            every=self.every,
            pace=Pace.TOGETHER,
            stops=True,
            moves=f"{moves}the largest {100 * self.density:.3g} % of the movements, {self.bits} bits each, "
            f"{often(self.every)}, after the optimizer"
            + (f"; all entries from sites other than {', '.join(self.narrow)}" if self.narrow else ""),
            waits=f"{waits}all workers for the slowest, {often(self.every)}{late}",
            stale=(f"the others' steps of the current block, up to {behind}, and " if behind else "")
            + "the smaller entries, until they are among the largest",
            lost_when_one_dies="its unsent entries; the others stop at the next exchange",
        )

    def _make_plans(self, view: SyncView, phase: int) -> dict[int, StepPlan]:
        homes, stay = members_by_site(view) if self.by_site else (), self.by_site and view.changes
        if len(homes) < 2 and not stay:  # each worker sends its own message
            homes = tuple((rank,) for rank in view.members)
        # One worker in all: nothing to send.
        if len(homes) == 1 and not view.changes:
            return dict.fromkeys(view.members, bsp_plan(view.members))
        far = Exchange(
            payload=Payload.DELTA,
            members=view.members,
            merge=Mean(),
            moment=Moment.STEP,
            parties=homes,
            select=self._select,
            delay=self.delay,
            far=Far(whole=self._wide(view)),
        )
        plans = {}
        for home in homes:
            near = (gradient_mean(home),) if len(home) > 1 or stay else ()
            plans.update(dict.fromkeys(home, StepPlan(exchanges=(*near, far) if phase % 2 else near)))
        return plans

    def _wide(self, view: SyncView) -> tuple[int, ...]:
        """Return the ranks that send all entries; raise ConfigError if no worker is at a site of ``narrow``."""
        there = {view.sites.get(rank, "") for rank in view.members}
        # The workers of a site may come later, and before a run no sites are known.
        if view.sites and not view.changes and (unknown := [one for one in self.narrow if one not in there]):
            raise ConfigError(
                f"{self._name}: narrow = {unknown[0]!r}, but the sites are {', '.join(map(repr, sorted(there)))}: name "
                "one of them, or set UNEVEN_SITE on its machines"
            )
        return tuple(one for one in view.members if self.narrow and view.sites.get(one, "") not in self.narrow)


class LargestEntries(SparseLocal):
    """Top-k on every step: :class:`SparseLocal` with blocks of one step and whole values."""

    _name = "topk"

    def __init__(
        self,
        *,
        density: float = 0.01,
        bits: int = 32,
        chunk: int = 4096,
        by_site: bool = True,
        narrow: str | tuple[str, ...] = (),
    ) -> None:
        super().__init__(every=1, density=density, bits=bits, chunk=chunk, by_site=by_site, narrow=narrow)
