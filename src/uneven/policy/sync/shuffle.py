"""DS-Sync: any mean of the parameters, in groups that change from one exchange to the next."""

from dataclasses import replace

from uneven.errors import ConfigError
from uneven.policy.core.actions import Payload, StepPlan, Via
from uneven.policy.core.registry import Value
from uneven.policy.core.views import SyncView
from uneven.policy.sync._parts import NOTHING, Members, PerRank
from uneven.policy.sync.groups import Grouping, groupings
from uneven.policy.sync.local import often
from uneven.policy.sync.sync_policy import EvaluationModel, Facts, Pace, SyncPolicy, WrappingPolicy, policies


class Shuffle(WrappingPolicy):
    """Runs the exchange of ``inner`` in changing groups (DS-Sync, Wang et al. 2020, with ``MA(every=1)``).

    Only a group waits, and over several exchanges all workers agree: two on a full grid, d on a hypercube. With weights
    by samples, as in ``MA``, each group and so the whole keeps the weighted mean of its replicas while the shares stay.
    Two turns of a grid are exact if shares are equal, or with ``MA(by_samples=False)``. It does not help against a
    permanently slow worker, which meets all others within a few exchanges.

    Args:
        inner: a policy that replaces all parameters by their mean. A name means that policy with ``every=1`` unless it
            says otherwise.
        groups: a :class:`uneven.policy.sync.Grouping` or its name.
    """

    evaluation_model = EvaluationModel.MEAN

    def __init__(self, inner: str | SyncPolicy = "ma", groups: str | Grouping = "grid") -> None:
        super().__init__(policies.resolve(inner, every=1))
        self.groups = groupings.resolve(groups)
        # Raises for policies that changing groups would break.
        self._facts = _checked(self.inner)
        self._group = PerRank(self._make_groups, looks_at_sites=self.groups.looks_at_sites)

    def plan(self, view: SyncView) -> StepPlan:
        turn = view.clock // self._facts.every
        group = self._group(view, self.groups.phase(len(view.members), turn))
        return NOTHING if len(group) == 1 else self.inner.plan(view._replace(members=group))

    @property
    def facts(self) -> Facts:
        inner = self._facts
        return replace(
            inner,
            pace=Pace.GROUPS,
            moves=f"{inner.moves}, within the current group",
            waits=f"each worker for the slowest of its group, {often(inner.every)}; delays spread from group to group",
            stale=f"the steps of others until they have passed through the groups, in {self.groups.reach}",
            lost_when_one_dies=f"its steps since the last exchange, up to {inner.every}; its group stops at the next "
            "one, then the others",
        )

    def _make_groups(self, view: SyncView, phase: int) -> dict[int, Members]:
        return {rank: group for group in self.groups.groups(view, phase) for rank in group}


def ds_sync(
    inner: str | SyncPolicy = "ma",
    *,
    groups: str = "grid",
    columns: int | None = None,
    base: int | None = None,
    size: int | None = None,
    seed: int | None = None,
    inside: int | None = None,
) -> Shuffle:
    """Runs ``inner`` in groups that change with each exchange (DS-Sync).

    Args:
        groups: grid (columns), digits (base), random (size, seed) or sites (inside).

    Raises:
        ConfigError: an option out of range, or ``inner`` exchanges something else.
        UnknownNameError: no such policy or grouping, or an option of another grouping.
    """
    given: dict[str, int | None] = {"columns": columns, "base": base, "size": size, "seed": seed, "inside": inside}
    options: dict[str, Value] = {key: value for key, value in given.items() if value is not None}
    return Shuffle(inner, groupings.make(groups, options))


def _checked(inner: SyncPolicy) -> Facts:
    facts = inner.facts
    if facts is None:
        raise ConfigError(f"shuffle: {inner!r} has no facts, so its period is unknown: give it `facts`")
    if Payload.GRADIENT in facts.payloads:
        raise ConfigError(
            f"shuffle: {inner!r} exchanges gradients, so replicas of different groups would drift apart: use "
            "shuffle:ma, which averages the parameters"
        )
    if facts.pace is not Pace.TOGETHER:
        raise ConfigError(
            f"shuffle: under {inner!r} workers exchange with a server and not in groups: use "
            f"shuffle:ma:every={facts.every}"
        )
    # Facts do not say how parameters are merged, so look at the exchange at the end of the first block.
    probe = SyncView(rank=0, clock=facts.every - 1, members=(0, 1))
    for exchange in inner.plan(probe).exchanges:
        if exchange.via is not Via.GROUP or not exchange.merge.plain:
            raise ConfigError(
                f"shuffle: {inner!r} keeps a copy or a momentum that all workers share "
                f"({type(exchange.merge).__name__}), so it needs fixed groups: use shuffle:ma:every={facts.every}"
            )
    return facts
