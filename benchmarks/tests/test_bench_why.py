"""``uneven bench why``: its draws, and its tables."""

from __future__ import annotations

from collections import Counter

from uneven_bench.why import remedies
from uneven_bench.why.bench import BARS, _errors, tables
from uneven_bench.why.cases import CAUSES, KINDS, drawn


def test_a_seed_decides_all_draws_and_each_cause_meets_each_kind() -> None:
    cases = drawn(3, 45, 40)
    assert cases == drawn(3, 45, 40) != drawn(4, 45, 40)
    assert Counter((one.disturbance, one.kind) for one in cases[:45]) == Counter((c, k) for c in CAUSES for k in KINDS)
    assert Counter(one.disturbance for one in cases[45:]) == {"quiet": 20, "busy": 20}
    worlds = remedies.drawn(3, 4, 10)
    assert worlds == remedies.drawn(3, 4, 10) != remedies.drawn(4, 4, 10)
    assert [bool(one.cores) for one in worlds] == [False, True, False, True]
    assert worlds[0].texts[0] == f"rank {worlds[0].slow} as fast as rank {worlds[0].fast}"


def test_errors_count_without_their_sign() -> None:
    compared = [{"expected": 2.0, "measured": 2.5, "error": -0.2}, {"expected": 1.1, "measured": 1.0, "error": 0.1}]
    assert _errors(compared) == {"median": 0.15, "worst": 0.2}
    assert _errors([]) is None


def test_the_tables_show_every_bar() -> None:
    one = {"pairs": 2, "ratio": 1.0, "least": 1.0, "most": 1.0, "wall": 1.0, "wall_least": 1.0, "wall_most": 1.0}
    right, error = dict.fromkeys(("rank_right", "cause_right", "silent_right"), 1.0), {"median": 0.01, "worst": 0.02}
    result = {**right, "overhead": {"5": one, "50": one}, "as_it_was_error": error, "remedy_error": error}
    shown = [str(cell) for one in tables(result) for column in one.columns for cell in (column.header, *column.cells)]
    assert all(any(bar in cell for cell in shown) for bar in BARS.values())
