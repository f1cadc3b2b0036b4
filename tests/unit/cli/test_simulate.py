"""``uneven simulate`` from the command line."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from uneven.cli import main, progress
from uneven.journal import read, summarize
from uneven.journal.pure.metrics import iterations
from uneven.journal.report import html
from uneven.journal.report.terminal import watch


def typed(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *words])
    return int(str(ended.value.code))


def test_a_table_a_comparison_and_a_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert typed("demo4", "--iterations", "60", "--compare", "--run-dir", str(run)) == 0
    text = capsys.readouterr().out
    for word in ("demo4, simulated", "node3", "lb-bsp under bsp", "samples/s", "speed-up", "events/s", str(run)):
        assert word in text
    summary = summarize(iterations(read(run).records()))
    assert summary.iterations == 59
    assert (run / "cluster.toml").is_file()
    assert typed(str(run / "cluster.toml"), "--no-journal", "--iterations", "5") == 0


def test_the_journal_is_shown_by_every_face(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert typed("spot", "--iterations", "80", "--run-dir", str(run)) == 0
    page = html.report(run)
    assert "balance lb-bsp · sync bsp · simulated world" in page
    assert "us-east-2a" in page
    state = watch(run)
    assert state.ended
    assert state.total().iterations > 70


def test_a_recorded_run_is_played_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert typed("demo4", "--iterations", "40", "--run-dir", str(run)) == 0
    capsys.readouterr()
    for cluster in ((), ("demo4",)):
        words = (*cluster, "--costs", str(run), "--balance", "even", "--iterations", "40", "--no-journal")
        assert typed(*words) == 0
        assert "296 ms per iteration" in capsys.readouterr().out


def test_the_same_command_writes_the_same_bytes(tmp_path: Path) -> None:
    texts = []
    for name in ("one", "two"):
        assert typed("lb_bsp_gpu12", "--iterations", "20", "--seed", "5", "--run-dir", str(tmp_path / name)) == 0
        texts.append({path.name: path.read_bytes() for path in (tmp_path / name / "journal").iterdir()})
    assert texts[0] == texts[1]


def test_what_is_wrong_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words, complaint in (
        ((), "name a cluster: a TOML file, or one of"),
        (("demo5",), "did you mean 'demo4'"),
        (("demo4", "--balance", "lb-bps"), "did you mean 'lb-bsp'"),
        (("demo4", "--sync", "spp"), "did you mean 'ssp'"),
        (("demo4", "--iterations", "0"), "iterations = 0: it must be at least 1"),
        (("--costs", str(tmp_path)), "no journal in"),
    ):
        assert typed(*words) == 2
        assert complaint in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_a_balancer_that_decides_nothing_is_played_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("demo4", "--sync", "asp", "--iterations", "5", "--no-journal") == 0
    assert "has no effect under sync = 'asp'" in capsys.readouterr().err


def test_a_simulation_whose_last_worker_dies_says_that_it_was_cut_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kills = [f'[[events]]\ndo = "kill"\nnode = "{node}"\nat_s = 0.5\n' for node in "ab"]
    nodes = 'name = "two"\nnodes = [{ name = "a", cores = 1 }, { name = "b", cores = 1 }]\n'
    (tmp_path / "cluster.toml").write_text(nodes + "".join(kills))
    assert typed(str(tmp_path / "cluster.toml"), "--iterations", "20", "--no-journal") == 0
    assert "of 20 iterations: no worker was left" in capsys.readouterr().out
    assert typed("demo4", "--iterations", "20", "--no-journal") == 0
    assert "no worker was left" not in capsys.readouterr().out


def test_a_log_gets_the_progress_from_the_second_second_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = 0.0
    monkeypatch.setattr(progress, "lines", partial(progress.lines, clock=lambda: now_s))
    with progress.bar(20, named=True) as moved:
        for done in range(21):
            moved(done, f"choice {done}")
            now_s += 1.0
    assert capsys.readouterr().err.splitlines() == [
        f"uneven: simulated {done} of 20 choice {done}" for done in (2, 12, 20)
    ]


def test_what_is_odd_about_the_links_is_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "slow.toml").write_text('name = "slow"\nnodes = [{ name = "a", count = 2, up_bit_per_s = 50 }]\n')
    assert typed(str(tmp_path / "slow.toml"), "--iterations", "2", "--no-journal", "--format", "json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["iterations"] == 2
    assert err == "uneven: A0's link up has 50 bit/s. Is the unit right? 50 Mbit/s is 50e6\n"
