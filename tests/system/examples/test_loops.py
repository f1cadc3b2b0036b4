"""Loops of today beside their plain forms: at most five lines differ, and the weights are those of one process."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import io
import os
import runpy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from uneven.testing.ranks import RankContext, run_ranks

LOOPS = Path(__file__).parents[3] / "examples" / "loops"
NEEDS = {"fabric": "lightning_fabric", "with_accelerate": "accelerate", "trainer": "transformers"}
NAMES = ("nanogpt", "dlrm", "gan", "fabric", "with_accelerate", "trainer", "fsdp2")
MOST = 5


def code(script: Path) -> list[str]:
    """Lines without the docstring, and without their indentation, which a block around a loop changes."""
    return [line.strip() for line in script.read_text().split('"""', 2)[2].splitlines() if line.strip()]


def differing(plain: list[str], balanced: list[str]) -> tuple[list[str], list[str]]:
    """Lines that are new or changed, and those that are gone or changed."""
    changes = [*difflib.ndiff(plain, balanced)]
    return tuple([line[2:] for line in changes if line.startswith(sign)] for sign in ("+ ", "- "))  # type: ignore[return-value]


def test_all_loops_are_run_here() -> None:
    assert {path.stem for path in LOOPS.glob("*.py")} == {*NAMES, *(f"{name}_plain" for name in NAMES)}


@pytest.mark.parametrize("name", NAMES)
def test_at_most_five_lines_differ(name: str) -> None:
    new, gone = differing(code(LOOPS / f"{name}_plain.py"), code(LOOPS / f"{name}.py"))
    assert len(new) <= MOST, new
    assert len(gone) <= MOST, gone


def test_what_counts_as_differing() -> None:
    assert differing(["a", "b", "c"], ["a", "d", "c", "e"]) == (["d", "e"], ["b"])


def weights(me: RankContext, script: str, folder: str) -> list[list[float]]:
    warnings.simplefilter("ignore")  # of the libraries, about each other
    os.chdir(folder)
    with contextlib.redirect_stdout(io.StringIO()):
        model = runpy.run_path(script)["model"]
    whole = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in model.state_dict().values()]
    return [one.double().flatten().tolist() for one in whole]


@pytest.mark.parametrize("name", NAMES)
def test_the_weights_are_those_of_one_process(name: str, tmp_path: Path) -> None:
    needed = NEEDS.get(name)
    if needed is not None and importlib.util.find_spec(needed) is None:
        pytest.skip(f"needs {needed}: pip install '.[…]'")
    (tmp_path / "uneven.toml").write_text('[run]\nbalance = "static:shares=6/2/4"\n')
    given: dict[str, Any] = {"timeout_s": 90, "join": False, "fresh": True}
    (plain,) = run_ranks(1, weights, str(LOOPS / f"{name}_plain.py"), str(tmp_path), **given)
    for ours in run_ranks(3, weights, str(LOOPS / f"{name}.py"), str(tmp_path), **given):
        for one, other in zip(ours, plain, strict=True):
            torch.testing.assert_close(torch.tensor(one), torch.tensor(other), rtol=1e-6, atol=1e-6)
