"""``uneven bench far-sites``: its reckoning where the answer is known, and each part on little."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from uneven.errors import DataError, UnknownNameError
from uneven.policy.sync import policies
from uneven_bench.far_sites import bench, cases, filters, lines, skewed, tasks
from uneven_bench.far_sites.learning import LossPoint, curve, loss_at, play, summarize
from uneven_bench.far_sites.skewed import SkewedOutcome, SkewedRuns, judged
from uneven_bench.harness.figures import place_of


def points(*losses: float, step_s: float = 1.0, step_bytes: float = 100.0) -> list[LossPoint]:
    return [LossPoint((n + 1) * step_s, (n + 1) * step_bytes, loss, 1 - loss) for n, loss in enumerate(losses)]


def test_a_loss_is_reached_on_a_straight_line_or_never() -> None:
    some = points(2.0, 1.0, 0.5)
    assert place_of(curve(some, "seconds"), 1.5) == 1.5
    assert place_of(curve(some, "carried_bytes"), 0.75) == 250.0
    assert place_of(curve(some, "seconds"), 3.0) == 1.0
    assert place_of(curve(some, "seconds"), 0.4) is None
    assert loss_at(some, "seconds", 2.5) == 0.75
    assert (loss_at(some, "seconds", 0.0), loss_at(some, "seconds", 9.0)) == (2.0, 0.5)


def test_every_seed_is_compared_with_bsp_of_that_seed() -> None:
    quick = points(2.0, 1.0, 0.5, 0.4, step_s=0.5, step_bytes=10.0)
    never = points(2.0, 1.9, 1.8, 1.7, step_s=0.5)
    found = summarize({"bsp": [points(2.0, 1.0, 0.5, 0.4)] * 3, "a": [quick] * 3, "b": [quick, never, never]}, 4, 1)
    assert found["target_loss"] == 1.0
    assert found["policies"]["a"]["times_sooner"] == 2.0
    assert found["policies"]["a"]["times_fewer_bytes"] == 10.0
    assert found["policies"]["a"]["final_loss_vs_bsp"] == 0.0
    assert found["policies"]["b"]["times_sooner"] is None
    assert found["policies"]["bsp"]["loss_equal_bytes"] == 2.0


def test_time_to_a_loss_is_steps_to_it_times_a_step_on_the_lines() -> None:
    def arm(step_s: float, losses: list[float]) -> dict[str, Any]:
        block = [{"seconds": 2 * step_s, "steps": 2, "samples": 64, "sent_bytes": 1000}] * 3
        return {"blocks": [block] * 4, "losses": losses, "own_pace": False, "limited": 3}

    found = lines.summarize(
        {"bsp": arm(1.0, [2, 1.5, 1, 0.8, 0.6]), "a": arm(0.1, [2, 2, 2, 1, 0.7]), "b": arm(0.1, [2, 2, 2, 2, 2])}
    )
    assert found["target_loss"] == 1.0
    rows = found["policies"]
    assert (rows["bsp"]["to_loss_s"], rows["bsp"]["times_sooner"]) == (4.0, 1.0)
    assert rows["a"]["times_sooner"] == pytest.approx(4.0 / 0.6)
    assert rows["b"]["times_sooner"] is None
    assert rows["a"]["final_loss_vs_bsp"] == pytest.approx(0.1)
    assert rows["a"]["sent_bytes"] == 500


def test_the_oracle_is_the_cheapest_setting_that_is_good_enough() -> None:
    ways = {"bsp": (0.6, 10.0), "0.5": (0.5, 1.0), "0.2": (0.56, 2.0), "0.02": (0.6, 8.0), "scout": (0.58, 3.0)}
    found = judged({way: [SkewedOutcome(*one)] for way, one in ways.items()}, 0.05)
    assert found["oracle"] == "0.2"
    assert (found["bytes_vs_oracle"], found["bytes_vs_bsp"]) == (1.5, 0.3)
    assert found["accuracy_vs_bsp"] == pytest.approx(-0.02)
    worse = judged({way: [SkewedOutcome(*ways[way])] for way in ("bsp", "0.5", "scout")}, 0.05)
    assert worse["oracle"] == "bsp"


def test_policies_arms_and_cases_are_known() -> None:
    for spec in (*cases.POLICIES.values(), *cases.SKEWED.values()):
        policies.resolve(spec)
    for quick in (True, False):
        for one in cases.emulated(quick).values():
            assert len(one.shares) == len(one.sites) == one.workers
            assert cases.BSP in one.arms
            assert set(one.arms) <= set(cases.ARMS)
    with pytest.raises(UnknownNameError):
        bench.run(True, "digits", lambda *told: None, case="30mbit")
    with pytest.raises(UnknownNameError):
        tasks.make("words", 10)


def test_text_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNEVEN_DATA", raising=False)
    with pytest.raises(DataError, match="tinyshakespeare"):
        tasks.make("text", 10)


def test_batch_norm_is_evaluated_with_the_mean_of_the_sites_statistics() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(60, 1, 16, 16), torch.randint(0, 3, (60,))
    x[:30] += 4.0
    halves = [torch.arange(30), torch.arange(30, 60)]
    task = tasks.NormalizedTask(tasks.lenet(1, 3, "bn", 0), ((x, y), (x, y)), 0.1, halves, 5)
    task.accuracy(task.initial())
    first = task._norms[0]
    through = task._module[0](x)  # type: ignore[index]
    apart = [through[own].mean((0, 2, 3)) for own in halves]
    assert torch.allclose(first.running_mean, torch.stack(apart).mean(0), atol=0.3)  # type: ignore[arg-type]
    assert (first.running_var < through.var((0, 2, 3))).any(), "what differs between sites is in no site's variance"  # type: ignore[operator]
    assert not task.by_sample


def test_each_part_runs_on_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNEVEN_DATA", raising=False)
    monkeypatch.setattr(filters, "ENTRIES", 20_000)
    case = cases.LearningCase(
        task="digits", samples=1000, steps=6, every=2, policies=("bsp", "gaia 10%"), worlds=("20mbit",), seeds=1
    )
    told: list[str] = []
    virtual = {"digits": play(case, lambda phase, what, part: told.append(what))}
    runs = SkewedRuns(samples=300, steps=8)
    found: dict[str, Any] = {
        "virtual": virtual,
        "emulated": {},
        "left_out": {"20mbit": "no root"},
        "filter_10m_ms": filters.median(1),
        "accuracy": skewed.accuracies(runs, (0, 100), ("bsp",), lambda *told: None),
        "scout": skewed.scouted(runs, lambda *told: None, period=3, tolerance=0.05, seeds=1, skews=(100,)),
    }
    found |= bench.compared(found)
    assert found["time_to_loss_vs_bsp"]["digits, 20mbit"]["bsp"] == 1.0
    assert virtual["digits"]["20mbit"]["policies"]["gaia 10%"]["step_s"] > 0.069
    assert set(found["accuracy"]) == {"bn", "gn"}
    assert set(found["scout"]["100"]) >= {"bytes_vs_oracle", "bytes_vs_bsp", "accuracy_vs_bsp"}
    assert told
