"""The costs of a preconditioner in the form of a cluster description."""

from collections.abc import Sequence

from uneven.cluster.pure.describe.spec import Preconditioning
from uneven.cluster.pure.describe.write import preconditioner_to_toml
from uneven.errors import ConfigError
from uneven.policy.ownership.agreed_speeds import OwnWork
from uneven.policy.ownership.placement import Item


def described(
    kind: str, items: Sequence[Item], periods: tuple[int, int], share: float, place: str, own: OwnWork, factors: OwnWork
) -> str:
    """Return the TOML table ``[preconditioner]``; raise :class:`ConfigError` if nothing has been measured yet.

    ``share`` is f; ``own`` is all work on owned squares; ``factors`` has samples as cost.
    """
    if not own.busy_s > 0.0 or not own.cost > 0.0:
        raise ConfigError("the costs of the preconditioner are not measured yet: train some steps first")
    a, g = items[0].sides
    one = Preconditioning(
        layers=tuple(item.sides for item in items),
        kind=kind,
        factor_period=periods[0],
        refresh_period=periods[1],
        share=share,
        place=place,
        turns=items[0].ns_steps or round(items[0].step / (a * g * (a + g)), 6),
        cost_per_s=float(f"{own.cost / own.busy_s:.4g}"),
        factor_core_s=float(f"{factors.busy_s / factors.cost:.4g}") if factors.cost else 0.0,
    )
    return preconditioner_to_toml(one) + "\n"
