"""``uneven bench fleet-kill``: something is killed, and what it says of a training that went wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from uneven.fleet.engine.fleet_state import STATE
from uneven_bench.fleet import kill as bench


@pytest.fixture(autouse=True, scope="module")
def light_processes() -> Iterator[None]:
    """New processes import the script that was started, which is pytest here; they can do without it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["__main__"], "__spec__", None)
        patch.delattr(sys.modules["__main__"], "__file__", raising=False)
        yield


@pytest.mark.parametrize("kind", ["member", "preprocessor"])
def test_who_is_killed_is_trained_and_nothing_twice(kind: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:  # the program that something is killed in, in this process
        bench.main(str(tmp_path), "digits", "96", "1", kind, "0.0", "1")
    assert not ended.value.code
    said = bench._judged(tmp_path, tmp_path, ("digits", 96, 1))
    assert said == {"trained": True, "steps_too_many": 0, "same": True}


def test_what_is_missing_or_too_much_is_seen(tmp_path: Path) -> None:
    sizes = ("digits", 64, 1)
    asked = bench._state(tmp_path, sizes)
    (tmp_path / STATE).write_text(json.dumps({"schema": 1, **asdict(asked)}))
    said = bench._judged(tmp_path, tmp_path, sizes)
    assert said == {"trained": False, "steps_too_many": 0, "same": False}
    assert bench._steps({"optimizer": {"state": {0: {"step": 7.0}}}}) == 7
