"""``uneven plan`` from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from uneven.cli import main, plan_page
from uneven.cli.plan import split
from uneven.policy.balance import balancers
from uneven.policy.sync import carried, unheeded


def typed(*words: str, command: str = "plan") -> int:
    with pytest.raises(SystemExit) as ended:
        main([command, *words])
    return int(str(ended.value.code))


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, dict[str, Any]]:
    """The text of a plan, and its object in JSON, of one simulation."""
    pages: list[plan_page.PlanPage] = []

    def kept(page: plan_page.PlanPage, task: str | None) -> dict[str, Any]:
        pages.append(page)
        return as_json(page, task)

    capsys.readouterr()
    as_json = plan_page.as_json
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plan_page, "as_json", kept)
        assert typed(*words, "--format", "json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    plan_page.show(pages[0])
    return capsys.readouterr().out, found


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


def test_all_combinations_of_demo4_are_ranked_with_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    text, told = planned(capsys, "demo4", "--iterations", "60")
    rates = [row["samples_per_s"] for row in told["rows"]]
    assert rates == sorted(rates, reverse=True)
    assert len(rates) >= 20
    assert {row["balance"] for row in told["rows"] if row["sync"] == "diloco"} >= {"even", "lb-bsp"}  # three rounds
    assert max(rates) <= told["limit_per_s"]
    refused = [carried(row["sync"]) or unheeded(row["sync"], row["balance"]) for row in told["rows"]]
    assert [row["carried"] for row in told["rows"]] == [why is None for why in refused]
    assert {row["carried"] for row in told["rows"]} == {True, False}
    best = next(row for row in told["rows"] if row["carried"] and row["shown_to_learn"])
    assert told["best_carried"] == {"balance": best["balance"], "sync": best["sync"]}
    assert all(row["why"] for row in told["rows"])
    assert {one["sync"] for one in told["left_out"]} >= {"ma", "hierarchical", "asp"}
    base = next(row for row in told["rows"] if (row["balance"], row["sync"]) == ("even", "bsp"))
    assert base["speed_up"] == 1.0
    for words in ("node3 computes 6.0 × slower than node0", "The limit is", "Why", "Left out", "Today:", "not yet"):
        assert words in text
    assert "reached_s" not in base
    lines = text.splitlines()
    first = next(number for number, line in enumerate(lines) if "real run" in line)
    shown = [line for line in lines[first + 2 : lines.index("Why") - 2] if " × " in line]
    syncs = [line.replace("*", "").split()[2] for line in shown]
    assert sorted(syncs) == sorted([*{row["sync"] for row in told["rows"]}, "bsp"]), "a row a policy, and the baseline"
    answer = "\n".join(lines[:first])
    best = told["best_carried"]
    assert f"uneven run --balance {best['balance']} --sync {best['sync']} SCRIPT" in answer
    assert f"Caution:  under {best['sync']} a model may need more samples than under bsp" in answer
    assert "Exact:    uneven run --balance lb-bsp SCRIPT" in answer
    assert "--balance NAME,… or --format json shows them" in text


def test_with_a_task_the_time_to_the_accuracy_counts(capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "demo4",
        "--train",
        "digits",
        "--accuracy",
        "0.8",
        "--balance",
        "even,lb-bsp",
        "--sync",
        "bsp,asp,diloco:every=80",
    )
    text, told = planned(capsys, *words, "--iterations", "80")
    assert (told["task"], told["accuracy"]) == ("digits", 0.8)
    times = [row["reached_s"] for row in told["rows"]]
    reached = [time for time in times if time is not None]
    assert times == sorted(reached) + [None] * (len(times) - len(reached))
    by_sync = {(row["balance"], row["sync"]): row for row in told["rows"]}
    # Both learn the same of the same samples; one is faster.
    even, balanced = by_sync["even", "bsp"], by_sync["lb-bsp", "bsp"]
    assert even["reached_samples"] == balanced["reached_samples"]
    assert balanced["speed_up"] == pytest.approx(even["reached_s"] / balanced["reached_s"])
    assert by_sync["even", "diloco:every=80"]["reached_s"] is None  # it starts to learn with its first exchange
    assert "to 80 %" in text
    assert "Caution:" not in text, "the ranking shows what is learnt"
    assert text.count("uneven run") == 1
    assert "but it reaches only" in text


def test_what_has_a_note_is_marked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(balancers._notes, "numerical", "costly")
    text, told = planned(capsys, "demo4", "--iterations", "20", "--balance", "even,numerical:pairs=2", "--sync", "bsp")
    assert "numerical:pairs=2 (costly)" in text
    assert "even (" not in text
    assert {row["balance"] for row in told["rows"]} == {"even", "numerical:pairs=2"}, "as a command takes it"


def test_a_recorded_run_is_planned_with_its_own_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    words = ("demo4", "--iterations", "40", "--run-dir", str(run))
    assert typed(*words, command="simulate") == 0
    few = ("--balance", "even,lb-bsp", "--sync", "bsp", "--iterations", "60")
    _, described = planned(capsys, "demo4", *few)
    _, with_file = planned(capsys, str(run), *few)
    (run / "cluster.toml").unlink()
    _, without = planned(capsys, str(run), *few)
    assert without["cluster"] == "demo4"
    for recorded in (with_file, without):
        for row, known in zip(recorded["rows"], described["rows"], strict=True):
            assert (row["balance"], row["samples_per_s"]) == (
                known["balance"],
                pytest.approx(known["samples_per_s"], rel=0.02),
            )


def test_a_combination_that_cannot_be_played_is_left_out_and_the_rest_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text, told = planned(capsys, "demo4", "--balance", "even,static:shares=1/2", "--sync", "bsp", "--iterations", "20")
    assert [row["balance"] for row in told["rows"]] == ["even"]
    (left,) = told["left_out"]
    assert left["balance"] == "static:shares=1/2"
    assert "2 shares do not fit" in left["why"]
    assert "2 shares do not fit" in text
    assert typed("demo4", "--balance", "static:shares=1/2", "--sync", "bsp") == 2
    assert "no combination could be simulated" in capsys.readouterr().err


def test_what_exchanges_nothing_is_not_recommended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = ", ".join(
        f'{{ name = "node{rank}", cores = 1, up_bit_per_s = 100 }}' for rank in range(2)
    )  # meant as Mbit/s
    (tmp_path / "cluster.toml").write_text(f'name = "two"\nnodes = [{nodes}]\n')
    words = (str(tmp_path / "cluster.toml"), "--iterations", "20", "--balance", "even", "--sync")
    text, told = planned(capsys, *words, "bsp,local,diloco:every=500,shadow:ma")
    assert [row["sync"] for row in told["rows"]] == ["diloco:every=500", "local", "bsp"]
    assert told["best"] == told["best_carried"] == {"balance": "even", "sync": "diloco:every=500"}
    # Whole rounds: one exchange for 500 or 8 steps, although 20 were asked for.
    assert told["rows"][0]["speed_up"] == pytest.approx(500, rel=0.01)
    assert told["rows"][1]["speed_up"] == pytest.approx(8, rel=0.01)
    why = {one["sync"]: one["why"] for one in told["left_out"]}
    assert why["shadow:ma"].startswith("no exchange of all workers ended in")
    assert all(reason in " ".join(text.split()) for reason in why.values())
    assert typed(*words, "shadow:ma") == 2
    assert "no combination could be simulated: even under shadow:ma: no exchange" in capsys.readouterr().err


def test_where_nothing_could_be_played_the_failures_are_told_and_not_what_was_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [f'{{ name = "node{rank}", cores = 1 }}' for rank in range(2)]
    stop = '[[events]]\ndo = "stop"\nnode = "node0"\nat_s = 0.5\nfor_s = 1e9\n'
    (tmp_path / "cluster.toml").write_text(f'name = "two"\nnodes = [{", ".join(nodes)}]\n{stop}')
    assert typed(str(tmp_path / "cluster.toml"), "--iterations", "20") == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "no combination could be simulated: even under bsp: after 1e+09 s of virtual time" in told
    assert "same plans" not in told
    assert "own pace" not in told


@pytest.mark.parametrize(("words", "told"), [
    (("demo5",), "did you mean 'demo4'"),
    (("demo4", "--balance", "lb-bsb"), "did you mean 'lb-bsp'"),
    (("demo4", "--sync", "sps"), "did you mean"),
    (("demo4", "--accuracy", "0.9"), "--accuracy 0.9 needs a training: add --train digits"),
    (("demo4", "--iterations", "0"), "--iterations 0: it must be at least 1"),
])  # fmt: skip
def test_a_mistake_is_named(words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed(*words) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(("text", "parts"), [
    (None, ()),
    ("even, lb-bsp", ("even", "lb-bsp")),
    ("bsp,bmuf:every=4,nesterov=true,asp", ("bsp", "bmuf:every=4,nesterov=true", "asp")),
    ("shuffle:groups=digits,base=2:ma:every=2,asp", ("shuffle:groups=digits,base=2:ma:every=2", "asp")),
])  # fmt: skip
def test_options_stay_with_their_name(text: str | None, parts: tuple[str, ...]) -> None:
    assert split(text) == parts


def test_one_machine_has_nothing_to_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one.toml").write_text('name = "one"\nnodes = [{ name = "laptop" }]\n')
    text, told = planned(capsys, str(tmp_path / "one.toml"), "--iterations", "20")
    assert "There is nothing to plan: a single worker divides no batch and exchanges nothing." in text
    assert len(told["rows"]) == 1
    assert told["left_out"] == []


PRICED = """
name = "rented"
currency = "€"
workload = { global_batch = 64, gradient_bytes = 1_000_000 }
defaults = { up_bit_per_s = 1e8, down_bit_per_s = 1e8 }

[[nodes]]
name = "fast"
count = 2
cost = { kind = "affine", overhead_s = 0.0, per_sample_s = 0.01 }
price_per_hour = 3.0
spot_price_per_hour = 1.0
spot = { values = [1, 1, 1, 0], step_s = 900, rotate = 2 }

[[nodes]]
name = "slow"
cost = { kind = "affine", overhead_s = 0.0, per_sample_s = 0.02 }
price_per_hour = 0.5
"""


def test_prices_are_columns_and_a_budget_chooses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rented.toml").write_text(PRICED)
    words = (str(tmp_path / "rented.toml"), "--balance", "even,lb-bsp", "--sync", "bsp,local", "--iterations", "40")
    text, told = planned(capsys, *words)
    row = told["rows"][0]
    assert row["per_hour"] == 6.5
    assert row["per_million"] == pytest.approx(6.5 * 1e6 / row["samples_per_s"] / 3600)
    assert "€/hour" in text
    assert told["spot"]["per_hour"] == pytest.approx(2 * 0.75 + 0.5)
    assert "Spot machines are there 80 % of the time, with 2 interruptions per hour" in " ".join(text.split())
    changes = {one["words"]: one for one in told["machines"]}
    kinds = ("fast0", "slow")
    assert list(changes) == [f"one {what} like {kind}" for kind in kinds for what in ("more", "fewer")]
    assert changes["one more like fast0"]["per_hour"] == 9.5
    assert changes["one fewer like slow"]["samples_per_s"] < row["samples_per_s"]
    text, told = planned(capsys, *words, "--budget", "13", "--deadline", "8h")
    assert told["rows"][0]["samples_within"] == pytest.approx(7200 * row["samples_per_s"])
    assert "Within: € 13.00 and 8:00:00:" in " ".join(text.split())
    assert "samples, which take 2:00:00 and cost € 13.00" in " ".join(text.split())


def test_with_a_task_the_price_is_that_of_the_accuracy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rented.toml").write_text(PRICED)
    words = (str(tmp_path / "rented.toml"), "--balance", "even", "--sync", "bsp", "--iterations", "40")
    train = ("--train", "digits", "--accuracy", "0.5")
    text, told = planned(capsys, *words, *train, "--budget", "1")
    assert f" {6.5 * told['rows'][0]['reached_s'] / 3600:.2g} " in text
    assert "of € 1.00" in " ".join(text.split())


@pytest.mark.parametrize(("words", "told"), [
    (("--budget", "50"), "--budget 50.0: demo4 has no prices: give its nodes price_per_hour"),
    (("--budget", "-1"), "--budget -1.0: give an amount of money above 0"),
    (("--deadline", "8"), "--deadline 8: give a time above 0 with its unit, such as 8h, 90m or 2d"),
    (("--deadline", "0h"), "--deadline 0h: give a time above 0"),
])  # fmt: skip
def test_a_limit_that_is_none_is_refused(words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("demo4", *words) == 2
    assert told in " ".join(capsys.readouterr().err.split())


def test_memory_is_divided_where_a_description_has_the_models_size(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    nodes = 'nodes = [{ name = "a", memory_bytes = 24_000_000_000 }, { name = "b", memory_bytes = %d_000_000_000 }]\n'
    words = (str(tmp_path / "house.toml"), "--balance", "even", "--sync", "bsp", "--iterations", "20")
    for memory, line in ((12, "fits: 24 + 12 GB with fully_shard: start 2 workers on a"), (8, "8: 4 GB short")):
        made = f'name = "house"\nworkload = {{ state_bytes = 36_000_000_000 }}\n{nodes % memory}'
        (tmp_path / "house.toml").write_text(made)
        text, told = planned(capsys, *words)
        assert line in " ".join(text.split())
        assert told["memory"]["workers"] == ([2, 1] if memory == 12 else [])
    (tmp_path / "house.toml").write_text(f'name = "house"\n{nodes % 8}')
    text, told = planned(capsys, *words)
    assert "Memory:" not in text
    assert "memory" not in told
