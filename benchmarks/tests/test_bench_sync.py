"""``uneven bench sync``: its cases and its reckoning, where the answer is known."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from uneven.errors import UnknownNameError
from uneven.policy.samples.order import epoch_order
from uneven.policy.sync import policies
from uneven_bench.harness.figures import place_of
from uneven_bench.harness.worker import tuples
from uneven_bench.sync import bench as sync
from uneven_bench.sync.arm import TrainingStretch
from uneven_bench.sync.arms import even_batches, mlp
from uneven_bench.sync.cases import (
    AGAIN,
    BARE,
    CORES,
    DDP,
    EVERY,
    GAUGE,
    SEEDS,
    SHADOWS,
    SLOW,
    TWINS,
    YARDSTICK,
    SyncCase,
    cases,
    few,
    seed_of,
    seeded,
    short,
)  # fmt: skip
from uneven_bench.sync.table import (
    CurvePoint,
    _against_twins,
    curve,
    limited,
    loss_at,
    overall,
    rate,
    summarize,
)

CASE = SyncCase(name="100mbit-2", about="two", shares=(0.5, 0.5), mbit_per_s=100.0)


def ran(seconds: tuple[float, float], samples: tuple[int, int], sent_bytes: int = 0) -> list[dict[str, Any]]:
    """A stretch of training of two workers, in batches of ten."""
    return [
        {"seconds": s, "steps": n // 10, "samples": n, "sent_bytes": sent_bytes}
        for s, n in zip(seconds, samples, strict=True)
    ]


def arm(*blocks: list[dict[str, Any]], losses: tuple[float, ...], own_pace: bool, limited: int) -> dict[str, Any]:
    return {"blocks": list(blocks), "losses": list(losses), "own_pace": own_pace, "limited": limited}


def way(seconds: list[float], messages: float, parts: float) -> dict[str, Any]:
    return {"seconds": seconds, "sent_bytes": 4e6 * parts, "messages": messages, "parts": parts}


RESULT: dict[str, Any] = {
    "every": 7,
    "left_out": {"torchft-diloco": "torchft is not installed"},
    "gaps": {"shadow:ma": 7.0},
    "exchanges": {"everybody": way([3.0, 3.2], 6, 1.5), "grid": way([2.0, 2.0], 2, 1.0)},
    "arms": {
        # 200 samples/s, of which the second worker half: nobody waits, so each counts by its own time
        YARDSTICK: arm(
            ran((1.0, 1.0), (100, 50)), ran((1.0, 2.0), (100, 200)), losses=(2.0, 1.5, 1.0), own_pace=True, limited=2
        ),
        # 20 samples/s for both, of which the last hundred with free links
        DDP: arm(
            ran((1.0, 1.0), (10, 10), 40), ran((2.0, 2.0), (20, 20), 80), ran((9.0, 9.0), (100, 100), 9),
            losses=(2.0, 1.9, 1.5, 0.5), own_pace=False, limited=2,
        ),
        "shadow:ma": arm(
            ran((1.0, 1.0), (100, 100), 10), ran((2.0, 2.0), (190, 190), 19), losses=(2.0, 1.0, 0.8), own_pace=True,
            limited=2,
        ),
        "fr-ma": arm(
            ran((1.0, 1.0), (80, 80)), ran((2.0, 2.0), (160, 160)), losses=(2.0, 1.2, 0.9), own_pace=False, limited=2
        ),
    },
}  # fmt: skip


def test_every_case_has_what_it_compares_and_room_on_two_cores() -> None:
    known = cases()
    assert len(known) == 31
    for case in (*known.values(), *few().values(), *short().values()):
        assert {YARDSTICK, *SHADOWS, GAUGE} <= set(case.arms)
        assert case.name.startswith("twins") or case.name.endswith("-shadows") or {BARE, DDP} <= set(case.arms)
        assert sum(case.shares) <= CORES + 0.01
        for who in case.arms.values():
            if " " in who:
                policies.resolve(who.split(" ")[1].replace(EVERY, "8"))
    for name, case in known.items():
        if name.endswith("-shadows"):
            whole = known[name.removesuffix("-shadows")]
            assert set(case.arms) == {YARDSTICK, AGAIN, *SHADOWS}
            assert case.arms.items() <= whole.arms.items()
            assert (case.shares, case.mbit_per_s) == (whole.shares, whole.mbit_per_s)
            continue
        assert set(TWINS.values()) <= set(case.arms)
        assert ("bsp-balanced" in case.arms) == (max(case.shares) == pytest.approx(SLOW * min(case.shares), rel=0.01))
    assert set(few()) < set(known) == set(short())
    assert all(set(case.arms) <= set(known[name].arms) for name, case in short().items())
    pairs = known["twins-4"].arms
    assert [seed_of(name) for name in pairs if pairs[name] == pairs[GAUGE]] == list(range(SEEDS))


def test_a_task_comes_back_as_it_was_written() -> None:
    for case in cases().values():
        assert SyncCase(**tuples(json.loads(json.dumps(asdict(case))))) == case


def test_short_stretches_add_up_to_a_round() -> None:
    assert TrainingStretch.of([TrainingStretch(1.5, 2, 20, 7), TrainingStretch(0.25, 1, 10, 0)]) == TrainingStretch(
        1.75, 3, 30, 7
    )


def test_who_waits_for_nobody_counts_by_its_own_time() -> None:
    ranks = ran((1.0, 4.0), (100, 100))
    assert rate(ranks, own_pace=True) == 125.0
    assert rate(ranks, own_pace=False) == 50.0


def test_what_is_rarer_than_a_round_counts_in_all_of_them_together() -> None:
    plain = [ran((1.0, 1.0), (100, 100))] * 4
    slow = [*plain[:3], ran((1.0, 1.0), (40, 40))]  # an exchange, in one round of three; the first one settles
    losses = (2.0, 1.0, 1.0, 1.0, 1.0)
    arms = {
        name: arm(*blocks, losses=losses, own_pace=True, limited=4)
        for name, blocks in ((YARDSTICK, plain), ("shadow:ma", slow))
    }
    told = summarize(CASE, {**RESULT, "arms": arms})["policies"]["shadow:ma"]
    assert told["of_unsynchronised"] == pytest.approx(240 / 300)
    assert told["samples_per_s"] == pytest.approx(2 * 240 / 3)


def test_shares_are_of_the_mean_of_two_yardsticks_where_there_are_two() -> None:
    blocks = {YARDSTICK: 110, AGAIN: 90, "shadow:ma": 95}
    arms = {
        name: arm(*[ran((1.0, 1.0), (samples, samples))] * 3, losses=(2.0, 1.0, 1.0, 1.0), own_pace=True, limited=3)
        for name, samples in blocks.items()
    }
    told = summarize(CASE, {**RESULT, "arms": arms})["policies"]
    assert [told[name]["of_unsynchronised"] for name in blocks] == pytest.approx([1.1, 0.9, 0.95])
    assert told["shadow:ma"]["of_unsynchronised_spread"] == pytest.approx([0.95, 0.95])


def test_a_curve_counts_seconds_under_the_limits_alone() -> None:
    found = curve(RESULT["arms"][DDP])
    assert found == [CurvePoint(0, 0, 2.0), CurvePoint(1, 20, 1.9), CurvePoint(3, 60, 1.5), CurvePoint(3, 260, 0.5)]
    assert limited(RESULT["arms"][DDP]) == found[:3]
    assert loss_at(found, "samples", 60) == 1.5
    assert loss_at(found, "seconds", 3**0.5) == pytest.approx((1.9 * 1.5) ** 0.5)  # halfway, as powers go
    assert loss_at(found, "seconds", 0.5) == pytest.approx((2.0 * 1.9) ** 0.5)
    assert math.isnan(loss_at(found, "samples", 261))


def test_a_target_is_reached_between_two_points_or_never() -> None:
    points = [(0.0, 2.0), (2.0, 1.0), (4.0, 1.2), (5.0, 0.2)]
    assert place_of(points, 1.5) == 1.0
    assert place_of(points, 0.7) == 4.5
    assert place_of(points, 0.1) is None


def test_the_keys_of_a_case_and_of_the_whole() -> None:
    case = summarize(CASE, RESULT)
    arms = case["policies"]
    assert (case["equal_samples"], case["equal_time_s"], case["target_loss"]) == (260, 3.0, 1.5)
    assert arms[DDP]["samples_per_s"] == 20.0
    assert arms[DDP]["of_unsynchronised"] == 0.1
    assert arms[DDP]["bytes"] == 40.0 / 1.0 * 1.0
    assert arms[DDP]["loss_equal_samples"] == pytest.approx(0.5)
    assert arms[DDP]["time_to_target_s"] == 3.0
    assert arms["shadow:ma"]["of_unsynchronised"] == 0.95
    assert arms["shadow:ma"]["sync_gap"] == 7.0
    assert arms[YARDSTICK]["sync_gap"] is None
    whole = overall({"100mbit-2": case})
    assert whole["shadow_of_unsynchronised"] == 0.95
    assert whole["shadow_worst"] == {"policy": "shadow:ma", "case": "100mbit-2"}
    assert whole["shadow_vs_ddp_100mbit"] == 3.0 / 0.5
    apart = arms["shadow:ma"]["loss_equal_samples"] - arms["fr-ma"]["loss_equal_samples"]
    assert whole["shadow_vs_twin"]["100mbit-2"] == {"shadow:ma": {"mean": apart, "each": [apart]}}
    assert whole["shadow_of_bare"] is arms["shadow:ma"]["of_bare"] is None
    assert whole["ds_sync_vs_ring"] == {}  # two workers are one group
    bare = arm(*RESULT["arms"][YARDSTICK]["blocks"], losses=(2.0, 1.5, 1.0), own_pace=True, limited=2)
    told = summarize(CASE, {**RESULT, "arms": {**RESULT["arms"], BARE: bare}})
    assert overall({"100mbit-2": told})["shadow_of_bare"] == 0.95
    assert case["exchanges"]["grid"]["faster_than_ring"] == pytest.approx(1.55)
    assert case["exchanges"]["grid"]["predicted_by_bytes"] == 1.5
    assert case["exchanges"]["grid"]["predicted_by_messages"] == 3.0
    told = {"cases": {"100mbit-2": case}, **whole}
    json.dumps(told)


def test_where_shadows_are_alone_nothing_is_said_of_ddp_and_twins() -> None:
    alone = summarize(CASE, {**RESULT, "arms": {name: RESULT["arms"][name] for name in (YARDSTICK, "shadow:ma")}})
    told = json.loads(json.dumps({"cases": {"fast-2-shadows": alone}, **overall({"fast-2-shadows": alone})}))
    assert told["cases"]["fast-2-shadows"]["target_loss"] is None
    assert set(alone["policies"]) == {YARDSTICK, "shadow:ma"}


def test_pairs_of_one_seed_are_compared() -> None:
    losses = {"shadow:ma": 1.0, "fr-ma": 0.5, seeded("shadow:ma", 1): 0.7, seeded("fr-ma", 1): 0.8, "shadow:bmuf": 9.0}
    found = _against_twins({name: {"loss_equal_samples": loss} for name, loss in losses.items()})
    assert list(found) == ["shadow:ma"]
    assert found["shadow:ma"]["each"] == pytest.approx([0.5, -0.1])
    assert found["shadow:ma"]["mean"] == pytest.approx(0.2)


def test_an_arm_that_cannot_take_part_is_named_with_its_reason() -> None:
    given = {"none": "none", "odd": "even ma:every={every}", "theirs": "torchft-diloco:every=20"}
    able, left_out = sync._able(SyncCase(name="", about="", shares=(1.0,), mbit_per_s=1.0, arms=given))
    assert able == {name: who for name, who in given.items() if name not in left_out}
    assert left_out == ({} if find_spec("torchft") else {"theirs": "torchft is not installed"})
    with pytest.raises(UnknownNameError, match="case"):
        sync.run(True, "digits", lambda *_: None, case="fast-3")


def test_the_model_has_about_four_megabytes_on_both_data_sets() -> None:
    for inputs in (64, 784):
        size_bytes = sum(one.nbytes for one in mlp(inputs, 10).parameters())
        assert size_bytes == pytest.approx(4e6, rel=0.01)
    assert torch.equal(next(mlp(64, 10).parameters()), next(mlp(64, 10).parameters()))


def test_workers_without_a_session_take_the_parts_that_a_session_gives() -> None:
    batches = [even_batches(length=25, batch=3, rank=rank, workers=4) for rank in range(4)]
    seen = [[next(one) for one in batches] for _ in range(3)]  # two iterations an epoch, the last sample left out
    first = epoch_order(length=25, seed=0, epoch=0)
    assert [place for step in seen[:2] for part in step for place in part] == first[:24].tolist()
    assert seen[2][0] == epoch_order(length=25, seed=0, epoch=1)[:3].tolist()
    assert asdict(CASE)["batch"] == 64


def test_yardsticks_and_shadows_take_short_turns_where_their_shares_are_the_question() -> None:
    told_apart = {YARDSTICK, AGAIN, *SHADOWS}
    for of in (cases(), short(), few()):
        for name, case in of.items():
            assert set(case.by_turns) == (set() if name == "twins-4" else told_apart), name
            if case.by_turns:
                assert case.rounds_s[0] / case.turns == pytest.approx(0.3)
