"""Inputs that went wrong, taken in this process: no exception but uneven's own, and little memory.

``uneven bench mutations`` is the long form of it.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from uneven_bench.forked.scripts import run_script
from uneven_bench.mutations import bench as mutations
from uneven_bench.mutations import seeds as mutations_seeds
from uneven_bench.mutations import targets as tried
from uneven_bench.mutations.targets import TARGETS, MutationTarget, limited, warm_up

EACH = 60


@pytest.mark.parametrize("target", TARGETS, ids=lambda one: one.name)
def test_every_input_is_taken_or_refused_with_an_error_of_ours(target: MutationTarget, tmp_path: Path) -> None:
    folder = tmp_path / "of" / "one"
    warm_up(target, folder)
    with limited():
        found = [target.verdict(one, folder) for one in itertools.islice(target.inputs(mutations.SEED), EACH)]
    assert [one for one in found if one not in (tried.TAKEN, tried.REFUSED)] == []
    assert found.count(tried.REFUSED) > EACH // 10
    assert not [one for one in tmp_path.iterdir() if one.name != "of"], "something was written outside of its folder"


def test_good_inputs_are_taken(tmp_path: Path) -> None:
    """Or the mutated ones would be refused for what was wrong before."""
    good: dict[str, Sequence[bytes | list[str]]] = {
        "configuration": [mutations_seeds.SETTINGS],
        "run settings": [mutations_seeds.RUN_SETTINGS],
        "cluster": mutations_seeds.CLUSTERS[:1],
        "ensemble": [mutations_seeds.ENSEMBLE],
        "journal": [mutations_seeds.JOURNAL],
        "session state": [mutations_seeds.SESSION],
        "fleet state": [mutations_seeds.FLEET],
        "search": [mutations_seeds.SEARCH],
        "searched": [mutations_seeds.SEARCHED],
        "study of Optuna": [mutations_seeds.study()],
        "look-up": mutations_seeds.LOOK_UPS,
        "command line": mutations_seeds.COMMANDS,
    }
    assert list(good) == [one.name for one in TARGETS]
    for target in TARGETS:
        for one in good[target.name]:
            assert target.verdict(one, tmp_path / "of" / "one") == tried.TAKEN, (target.name, one)


def _fails(given: object) -> None:
    raise KeyError("a bug")


def _grows(given: object) -> None:
    bytearray(2 << 30)


def test_a_traceback_and_a_runaway_are_seen(tmp_path: Path) -> None:
    here = Path.cwd()
    verdict = MutationTarget("bad", TARGETS[0].inputs, _fails).verdict(b"", tmp_path / "one")
    assert verdict.startswith("KeyError: 'a bug' (targets.py:")
    with limited():
        assert (
            MutationTarget("large", TARGETS[0].inputs, _grows).verdict(b"", tmp_path / "one").startswith("MemoryError")
        )
    assert Path.cwd() == here


def test_the_same_seed_makes_the_same_inputs_and_another_one_others() -> None:
    for target in TARGETS:
        one, again, other = (list(itertools.islice(target.inputs(seed), 40)) for seed in (1, 1, 2))
        assert one == again != other
        assert len({str(each) for each in one}) > 25


def test_what_hangs_or_dies_takes_nobody_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes that the bench starts, played by one that says the same."""
    script = tmp_path / "child.py"
    script.write_text(
        "import json, os, signal, sys\n"
        "for number in range(int(sys.argv[3]), int(sys.argv[3]) + int(sys.argv[4])):\n"
        "    print(json.dumps({'begun': number}), flush=True)\n"
        "    if number == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    if number == 3: signal.pause()\n"
        "    verdict = {0: 'taken', 4: 'KeyError: 1'}.get(number, 'refused')\n"
        "    print(json.dumps({'ended': number, 'verdict': verdict}), flush=True)\n"
    )
    monkeypatch.setattr(mutations, "_CHILD", [sys.executable, "-S", str(script)])
    seen: list[int] = []
    found = mutations.attempt("any", 6, seen.append, limit_s=2.0)
    assert found.verdicts == {"taken": 1, "refused": 2}
    assert found.faults == {1: "the process ended with exit code -9", 3: "no end within 2 s", 4: "KeyError: 1"}


def test_a_process_of_the_bench_says_what_it_does() -> None:
    done = run_script(["-m", "uneven_bench.mutations.targets", "configuration", "1", "2", "2"])
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one.get("begun", one.get("ended")) for one in said] == [2, 2, 3, 3], done.stderr
    assert {one["verdict"] for one in said if "ended" in one} <= {tried.TAKEN, tried.REFUSED}
