"""The commands of ``uneven bench``: each has a bench that takes its options, and says first how long it takes."""

from __future__ import annotations

import inspect
import json
from importlib import import_module
from typing import Any

import pytest

from uneven.cli import main
from uneven_bench import commands
from uneven_bench.balancers import bench as balancers

CALLBACKS = {one.name: one.callback for one in commands.app.registered_commands}


@pytest.mark.parametrize("name", CALLBACKS)
def test_a_bench_takes_the_options_of_its_command(name: str) -> None:
    callback: Any = CALLBACKS[name]
    bench = import_module(inspect.getclosurevars(callback).nonlocals["where"])
    options = set(inspect.signature(callback).parameters) - {"json"} | {"progress"}
    assert set(inspect.signature(bench.run).parameters) == options


@pytest.mark.parametrize(
    ("given", "said"),
    [({"quick": True}, "a second"), ({"quick": False}, "an hour"), ({"quick": False, "case": "one"}, "a minute")],
)
def test_the_first_line_says_how_long_that_form_takes(
    given: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(balancers, "run", lambda progress, **options: options)

    def made() -> None:
        """A bench."""

    how = {"module": "balancers.bench", "whole": "an hour", "case": "a minute", "quick": "a second"}
    made = commands.bench("case", **how)(made)
    commands.app.registered_commands.pop()
    made(json=True, **{"case": None, **given})
    printed = capsys.readouterr()
    assert printed.err.splitlines()[0] == f"uneven: bench made takes about {said}"
    assert json.loads(printed.out.splitlines()[-1]) == {"case": None, **given}
    assert (made.__doc__ or "").endswith("Takes an hour, with --case NAME a minute, with --quick a second.")


def test_an_unknown_bench_is_one_line_without_a_line_of_the_benches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "lb-bps"])
    assert capsys.readouterr().err.startswith("error: unknown bench 'lb-bps'")
