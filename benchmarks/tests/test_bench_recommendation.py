"""What the bench of recommendation models says follows from what it measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from uneven.errors import ConfigError
from uneven_bench.recommendation import faults, narrow, quality, serving, tuning
from uneven_bench.recommendation.bench import CASES, QUICK, SPEED, MeasuredTrainers, _measured, judged, run
from uneven_bench.recommendation.clicks import Clicks
from uneven_bench.recommendation.disk import out_of_memory_rows
from uneven_bench.recommendation.page import scaling_page
from uneven_bench.recommendation.quality import TWINS, WAYS, OnePass
from uneven_bench.recommendation.tuning import PLAIN, Learned, LearningSettings, Pass


def measured(per_s: tuple[float, ...], trainer_us: float = 50.0) -> list[MeasuredTrainers]:
    return [MeasuredTrainers(tuple(rate * drift for rate in per_s), trainer_us, 5.0) for drift in (1.0, 0.5, 1.0)]


_AT_512 = {"trainers": (60.0, 90.0), "processes, flat": (100.0, 100.0)}


def test_ratios_are_of_the_same_round_and_medians() -> None:
    found = {name: measured((100.0,)) for name in ("1 at 0.2 core", "one trainer, tables in it", *QUICK)}
    found |= {"4 at 0.2 core": measured((100.0, 100.0, 90.0, 90.0)), "unequal": measured((400.0, 200.0, 100.0, 80.0))}
    found |= {"4, one slow": measured((97.0, 97.0, 90.2, 23.0))}
    found |= {"two trainers": measured((120.0, 60.0)), "DDP, sparse": measured((5.0, 5.0))}
    found |= {f"two {what}, batch 512": measured(rates) for what, rates in _AT_512.items()}
    found |= {"one trainer": measured((90.0,), 55.0), "TorchRec, batch 128": measured((25.0, 25.0))}
    found |= {"TorchRec, unequal": measured((50.0,) * 4), "TorchRec's pipeline, batch 128": measured((30.0, 30.0))}
    result = judged(found)
    assert result["scaling"] == {"1": 1.0, "4": pytest.approx(0.95)}
    assert result["share_evenness"] == pytest.approx(0.8)
    assert result["beside_slow"] == pytest.approx(0.98)
    assert result["vs_one_process"] == pytest.approx(1.8)
    assert result["vs_ddp_sparse"] == pytest.approx(18.0)
    assert result["of_shared_nothing"] == {"512": pytest.approx(0.75)}
    assert result["trainer_cpu_ratio"] == pytest.approx(1.1)
    assert result["vs_torchrec"] == {"128": pytest.approx(3.0)}, "the faster of its two ways"
    assert result["vs_torchrec_unequal"] == {"0.8/0.4/0.2/0.2": pytest.approx(780 / 200 * 1.6 / 1.6039)}
    result |= {"rounds": 3, "window_s": 4.0}
    page = scaling_page(result)
    assert "Of 4 trainers each does 95% of what one alone does." in page
    assert "Examples a second of each trainer, on 0.8, 0.4, 0.2, 0.2 of a core" in page
    part = judged({name: found[name] for name in ("1 at 0.2 core", "4 at 0.2 core", "unequal")})
    assert part["scaling"] == result["scaling"]
    assert (part["share_evenness"], part["vs_one_process"]) == (result["share_evenness"], None)
    assert judged({name: found[name] for name in SPEED["slow"]})["scaling"] == {}, "nothing of one trainer alone"
    with pytest.raises(ConfigError, match="--case killed does not measure that"):
        run(True, lambda *_: None, "killed", Path("page.html"))
    assert set(QUICK) <= set(CASES)
    assert {name for names in SPEED.values() for name in names} == set(CASES), "each is in a case"


def test_only_the_time_in_which_all_trained_counts() -> None:
    fast = {"began_s": 10.0, "marks": [[at / 10, at / 20] for at in range(80, 160)]}
    slow = {"began_s": 10.5, "marks": [[at / 2, at / 4] for at in range(10, 31)]}
    found = _measured([fast, slow], batch=100, server_s=0.5)
    assert found.per_s == (pytest.approx(1000.0), pytest.approx(200.0))
    assert found.trainer_us == pytest.approx(1e6 * 4.5 / 5400)
    assert found.server_us == pytest.approx(1e6 * 0.5 / (100 * (55 + 10)))


def a_log(samples: int) -> Clicks:
    random = np.random.default_rng(0)
    ids = random.integers(0, 50, (samples, 3))
    clicked = (random.random(samples) < 0.2 + 0.6 * (ids[:, 0] % 2)).astype(np.float32)
    flat = (ids + np.array([0, 50, 100])).astype(np.int32)
    return Clicks(flat, random.standard_normal((samples, 2)).astype(np.float32), clicked, (50, 50, 50))


def test_a_pass_in_virtual_time_learns_and_a_shadow_never_waits() -> None:
    data = a_log(3000)
    small = {name: replace(way, batch=way.batch // 8, stagger=0) for name, way in WAYS.items() if name != "easgd-30"}
    found = {name: OnePass(data, way, 0).run() for name, way in small.items()}
    assert found["sequential"].log_loss < 0.69
    assert OnePass(data, small["asynchronous"], 0).run() == found["asynchronous"], "a seed gives one answer"
    assert found["asynchronous"].per_unit > 1.1 * found["easgd-5"].per_unit, "twins wait for the sync server"
    assert found["asynchronous"].per_unit == pytest.approx(8 * found["sequential"].per_unit, rel=0.15)
    assert found["asynchronous"].gap == pytest.approx(4 * 0.5, rel=0.15), "four trainers wait for one server in turn"
    assert 5 <= found["easgd-5"].gap <= 6, "a thread exchanges no more after its last batches"
    assert found["synchronous"].gap is None
    assert found["synchronous"].per_unit == pytest.approx(8 * found["sequential"].per_unit, rel=0.3)


def test_a_trainer_starts_after_the_first_updates_of_those_before_it() -> None:
    way = replace(WAYS["asynchronous"], batch=16, stagger=40)
    assert WAYS["asynchronous"].stagger > 0
    last = OnePass(a_log(3000), way, 0)  # 150 batches
    begun: list[int] = []
    ask = last._ask
    last._ask = lambda thread, batches: (batches > 1 and begun.append(last._applied), ask(thread, batches))[1]  # type: ignore[method-assign]
    assert last.run().per_unit < 0.8 * OnePass(a_log(3000), replace(way, stagger=0), 0).run().per_unit
    assert begun == [0, 0, 40, 40, 80, 80, 120, 120], "two threads each"


def test_a_pass_learns_with_its_settings_and_validates_on_the_half_that_is_not_reported() -> None:
    data, way = a_log(3000), replace(WAYS["sequential"], batch=16)
    plain = OnePass(data, way, 0).run()
    for settings in (LearningSettings(first_sum=1.0), LearningSettings(table_lr=0.2), LearningSettings(dense_lr=0.02)):
        assert OnePass(data, way, 0, settings).run().log_loss != plain.log_loss
    other = data._replace(clicked=data.clicked.copy())
    other.clicked[:300] = 1 - other.clicked[:300]  # of 600 that are held out
    seen = OnePass(other, way, 0).run()
    assert (seen.log_loss, seen.auc) == (plain.log_loss, plain.auc)
    assert seen.validation > plain.validation


def learned(way: str, settings: LearningSettings, seed: int) -> Learned:
    """The asynchronous way is best with a first sum, all others without one; what is reported says the opposite."""
    best = (settings.first_sum > 0) == (way == "asynchronous")
    slow = 0.01 if way == "asynchronous" else 0.0
    return Learned(0.4 + slow + 0.001 * seed + 0.002 * best, 0.7, 0.5 - 0.1 * best, 8.0)


def test_each_way_is_played_with_what_was_best_for_it_on_the_validation_part() -> None:
    grid = (PLAIN, LearningSettings(1e-5), LearningSettings(1e-5, 0.2))
    passes = tuning.to_tune(WAYS, grid, 3)
    assert len(set(passes)) == len(passes) == len(WAYS) * len(grid) * len(tuning.TUNING_SEEDS)
    tuned = {one: learned(*one) for one in passes}
    own = tuning.chosen(tuned)
    assert own.pop("asynchronous") == LearningSettings(1e-5), "of equals the first"
    assert set(own.values()) == {PLAIN}
    own = tuning.chosen(tuned)
    wanted = tuning.to_report(own, 2)
    assert len(set(wanted)) == len(wanted) == 2 * len(WAYS) * 2, "nothing is played twice"
    assert not set(wanted) & set(passes), "not with the seed that settings were chosen by"
    result = tuning.judged(tuned, {one: learned(*one) for one in wanted}, 2, TWINS)
    assert result["logloss_vs_synchronous"] == pytest.approx(0.01 / 0.4025, abs=1e-4)
    assert result["auc_vs_synchronous"] == 0.0
    assert result["by_seed"]["synchronous"] == [pytest.approx(0.01 / (0.402 + 0.001 * seed)) for seed in (0, 1)]
    assert result["by_seed"]["easgd-30"] == [pytest.approx(0.01)] * 2
    assert result["foreground_twins"]["easgd-30"] == {"eps_ratio": 1.0, "logloss_difference": pytest.approx(0.01)}
    assert result["quality"]["asynchronous"]["settings"] == {"first_sum": 1e-5, "table_lr": 0.05, "dense_lr": 0.01}
    plain, equal = result["quality_at_equal_settings"]
    assert plain["logloss_vs_synchronous"] == pytest.approx(0.008 / 0.4025, abs=1e-4)
    assert equal["quality"]["synchronous"]["settings"]["first_sum"] == 1e-5
    assert [one["validation"] for one in result["quality_tuned"]["asynchronous"]] == [0.4, 0.4, 0.5]
    every = dict.fromkeys(WAYS, PLAIN)
    assert len(tuning.to_report(every, 3)) == 3 * len(WAYS), "equal settings that are each way's own"
    lucky = Pass("sequential", LearningSettings(1e-5), tuning.TUNING_SEEDS[0])
    assert tuning.chosen(tuned | {lucky: replace(tuned[lucky], validation=0.35)})["sequential"] == PLAIN, "on average"


def test_the_quality_case_plays_all_that_was_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    monkeypatch.setattr(quality, "clicks", a_log)
    found = quality.quality(1, 1000, (PLAIN, LearningSettings(1e-5)), lambda what, which, done: told.append(done))
    assert set(found["quality"]) == set(WAYS)
    assert [len(one) for one in found["quality_tuned"].values()] == [2] * len(WAYS)
    assert told[2 * len(WAYS) - 1] == told[-1] == 1.0
    own = LearningSettings(**found["quality"]["asynchronous"]["settings"])
    again = OnePass(a_log(1000), WAYS["asynchronous"], 0, own).run()
    assert found["quality"]["asynchronous"]["log_loss"] == [again.log_loss], "in whichever process"
    assert [one["elp"] for one in found["elp"].values()] == [512, 1024, 2048] * 3
    four = found["elp"]["asynchronous"]
    assert (four["log_loss"], four["sync_gap"]) == (again.log_loss, again.gap)
    assert found["elp"]["easgd-30"]["sync_gap"] is None, "no thread has 30 batches here"


def test_both_runs_go_first_in_turn_and_kills_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[int] = []

    def one(_: Clicks, seed: int, kills: int) -> faults.OneRun:
        played.append(kills)
        took_s = [7.0] * faults._WARM + ([0.1, 9.0, 0.1, 0.3] if kills else [0.1] * 4)
        return faults.OneRun(0.51 if kills else 0.5, took_s, [faults._WARM + 1] if kills else [], lost=seed)

    monkeypatch.setattr(faults, "_one_pass", one)
    monkeypatch.setattr(faults, "clicks", a_log)
    found = faults.killed(2, 10, lambda *_: None)["killed"]
    assert played == [0, faults.KILLS, faults.KILLS, 0]
    assert found["logloss_vs_undisturbed"] == pytest.approx(0.02)
    assert found["eps_outside"] == pytest.approx([0.6, 0.6]), "a slow batch after a kill counts"
    assert (found["away_s"], found["lost"], found["updates"]) == (9.0, [0, 1], 2 * (faults._WARM + 4))


def test_a_shard_of_a_pass_is_killed_and_one_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real servers: two in a short pass, one of 10 MB."""
    monkeypatch.setattr(faults, "SAVE_EVERY_S", 0.1)
    hit = faults._one_pass(a_log(3000), 0, 1)
    assert (hit.restarts, len(hit.broken)) == (1, 1)
    assert hit.log_loss < 1.0
    saved = faults.checkpoint(0.01, 0.1, lambda *_: None)["checkpoint"]
    assert saved["gigabytes"] == pytest.approx(0.01, rel=0.01)
    assert saved["written_gigabytes"] == pytest.approx(0.01 * 17 / 16, rel=0.01), "and Adagrad's sums"
    assert saved["more_bytes"] >= 0


def test_latencies_are_quantiles_and_rates_are_of_a_span() -> None:
    assert serving.quantiles([0.001] * 99 + [0.101]) == {"p50": 1.0, "p99": pytest.approx(2.0)}
    ends_s = np.concatenate([np.arange(0, 10, 0.1), np.arange(10, 20, 0.2)])
    assert serving.rate(ends_s, 1.01, 8.99) == pytest.approx(10.0)
    assert serving.rate(ends_s, 10.01, 18.99) == pytest.approx(5.0)


def test_a_table_on_disk_trains_next_to_one_in_memory_and_is_saved() -> None:
    """Real servers, for two batches each."""
    found = out_of_memory_rows(5000, 500 * 77, 0.0, 0.0, 1, lambda *_: None)["out_of_memory_rows"]
    (memory,), (disk,) = found["by_round"].values()
    assert found["vs_memory"] == disk / memory
    assert found["examples_per_s"] == {"in memory": memory, "on disk": disk}
    assert 1 < found["writes_per_example"] <= found["reads_per_example"] < 26
    assert found["saved_bytes"] > 500 * 17 * 4


def test_rows_with_fewer_bits_learn_in_fewer_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrow, "clicks", a_log)
    monkeypatch.setattr(faults, "BATCH", 16)
    monkeypatch.setattr(narrow, "WAYS", {way: narrow.WAYS[way] for way in ("float32", "both int8")})
    found = narrow.narrow(1, 3000, lambda what, done: None)["narrow"]
    plain, small = found["float32"], found["both int8"]
    assert (plain["row_bytes"], small["row_bytes"]) == (150 * 68, 150 * 24)
    assert (plain["answer_bytes"], small["answer_bytes"]) == (3 * 64, 3 * 20)
    assert plain["vs_float32"] == [0]
    assert small["log_loss"][0] < 0.69
    assert abs(small["vs_float32"][0]) < 0.05
