"""Local steps, then a mean of the parameters over all workers: local SGD, model averaging."""

from dataclasses import replace
from typing import ClassVar

from uneven.errors import ConfigError
from uneven.policy.core.actions import Combined, Exchange, Mean, Merge, Moment, Payload, StepPlan
from uneven.policy.core.views import SyncView
from uneven.policy.merge import merges
from uneven.policy.sync._parts import NOTHING, Members, Remembered, flag, whole
from uneven.policy.sync.bsp import bsp_plan
from uneven.policy.sync.sync_policy import EvaluationModel, Facts, Pace, SyncPolicy


class Blocks(SyncPolicy):
    """Base class of policies under which all workers merge their parameters every few steps."""

    evaluation_model = EvaluationModel.MEAN
    shown: ClassVar[int | None] = 1200  # updates of a client in a round of FedAvg (McMahan et al. 2017) [recalled]

    def __init__(self, *, every: int, merge: Merge, name: str) -> None:
        self.every = whole(name, "every", every, least=1)
        self._merge = merge
        self._plan = Remembered(self._make_plan)

    def plan(self, view: SyncView) -> StepPlan:
        return NOTHING if (view.clock + 1) % self.every else self._plan(view.members)

    @property
    def constant(self) -> bool:
        return self.every == 1

    @property
    def facts(self) -> Facts:
        return Facts(
            payloads=(Payload.PARAMETERS,),
            every=self.every,
            pace=Pace.TOGETHER,
            stops=True,
            moves=f"the parameters, {often(self.every)}, after the optimizer",
            waits=f"all workers for the slowest, {often(self.every)}",
            stale=f"the others' steps of the current block, up to {self.every - 1}" if self.every > 1 else "nothing",
            lost_when_one_dies=f"its steps since the last exchange, up to {self.every}; the others stop at the next",
            shown=self.shown,
        )

    def _make_plan(self, members: Members) -> StepPlan:
        merge = Exchange(payload=Payload.PARAMETERS, members=members, merge=self._merge, moment=Moment.STEP)
        return StepPlan(exchanges=(merge,))


def often(every: int) -> str:
    """Return a phrase such as "every step" or "every 8 steps"."""
    return "every step" if every == 1 else f"every {every} steps"


class LocalSGD(Blocks):
    """x_i ← mean of the replicas, weighted by samples, every few steps, after a warm-up of BSP (post-local SGD).

    Optimizer state stays with its worker. One step per block is BSP for plain SGD and for SGD with momentum, because
    both are linear in the gradient. For Adam, or with clipping, it is not.

    Args:
        every: steps of a block.
        warmup: steps of BSP at the start; the blocks are counted from their end.
    """

    def __init__(self, *, every: int = 8, warmup: int = 0) -> None:
        super().__init__(every=every, merge=Mean(), name="local")
        self.warmup = whole("local", "warmup", warmup, least=0)
        self._warm = Remembered(bsp_plan)

    def plan(self, view: SyncView) -> StepPlan:
        step = view.clock - self.warmup
        if step < 0:
            return self._warm(view.members)
        return NOTHING if (step + 1) % self.every else self._plan(view.members)

    @property
    def facts(self) -> Facts:
        facts = super().facts
        if not self.warmup:
            return facts
        return replace(
            facts,
            begins=self.warmup,
            payloads=(Payload.GRADIENT, Payload.PARAMETERS),
            moves=f"the gradient for {self.warmup} steps, then {facts.moves}",
            waits=f"all workers for the slowest: every step for {self.warmup} steps, then {often(self.every)}",
        )


class MA(Blocks):
    """x_i ← mean of the replicas, weighted by samples, every few steps (model averaging).

    It is local SGD without a warm-up, under ShadowSync's name: ``Shadow("ma")`` is S-MA. ``Shuffle("ma")`` is DS-Sync.

    Args:
        every: steps between two means.
        by_samples: False gives all replicas equal weight, as ShadowSync does.
    """

    def __init__(self, *, every: int = 8, by_samples: bool = True) -> None:
        self.by_samples = flag("ma", "by_samples", by_samples)
        super().__init__(every=every, merge=Mean(by_samples=self.by_samples), name="ma")


class AnyMerge(Blocks):
    """A merge of all workers' parameters every few steps, for custom merges that average their contributions.

    The evaluated model is the outcome of the last exchange, or the current mean if the merge is a plain mean.

    Args:
        every: steps of a block.
        merge: a :class:`uneven.policy.merge.Merge` or its name.
    """

    def __init__(self, *, every: int = 8, merge: str | Merge = "mean") -> None:
        self.merge = merges.resolve(merge)
        if self.merge.combined is not Combined.MEAN or Payload.PARAMETERS not in self.merge.payloads:
            raise ConfigError(
                f"blocks: {self.merge!r} does not average parameters: use easgd, asp (which adds movements), or a "
                "merge that averages its contributions"
            )
        self.evaluation_model = EvaluationModel.MEAN if self.merge.plain else EvaluationModel.CENTRE
        super().__init__(every=every, merge=self.merge, name="blocks")
