"""Ensembles for the tests of FLEET: the example of the paper's slides, made-up ones, and every method to train them."""

import math

from hypothesis import strategies as st

from uneven.fleet.pure.planning.flotillas import FlotillaPlanner, Paradigm, Planner
from uneven.fleet.pure.planning.rates import Rates
from uneven_bench.fleet_plan.rivals import Homogeneous, OneAfterAnother, OnePerDevice
from uneven_bench.fleet_plan.simulate import EnsembleWork

EXAMPLE = Rates(
    {"D1": (100, 190, 270, 350), "D2": (80, 150, 220, 280), "D3": (80, 150, 200, 240), "D4": (40, 75, 105, 120)}
)
EQUAL = EnsembleWork(EXAMPLE, dict.fromkeys(EXAMPLE.members, 10), samples=1000, nodes=((0, 1), (2, 3)))
"""All four need the same 10,000 samples."""


def methods(work: EnsembleWork) -> dict[str, FlotillaPlanner]:
    rates, devices = work.rates, work.devices
    return {
        "baseline": OnePerDevice(),
        "homogeneous": Homogeneous(),
        "sequential": OneAfterAnother(rates, devices),
        **{paradigm.value: Planner(rates, devices, paradigm) for paradigm in Paradigm},
    }


ensembles = st.integers(1, 5).flatmap(
    lambda count: st.builds(
        EnsembleWork,
        rates=st.lists(
            st.lists(st.floats(5.0, 200.0), min_size=4, max_size=4).map(sorted), min_size=count, max_size=count
        ).map(lambda rows: Rates({f"m{place}": row for place, row in enumerate(rows)})),
        epochs=st.lists(st.integers(1, 9), min_size=count, max_size=count).map(
            lambda epochs: {f"m{place}": one for place, one in enumerate(epochs)}
        ),
        samples=st.just(100),
        nodes=st.just(((0, 1), (2, 3))),
        prepared_per_s=st.sampled_from((20.0, 100.0, math.inf)),
        checkpoint_s=st.sampled_from((0.0, 3.0)),
    )
)
"""Up to five members on four devices."""
