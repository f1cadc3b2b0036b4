"""Each picture of the pages holds the names that it prints, and the code prints the same ones today."""

from __future__ import annotations

import importlib.util
import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType

import pytest
from sample_runs import SampleRun

from uneven.cli import main
from uneven.journal.report import comparison
from uneven_bench.fleet_plan import bench as fleet_plan
from uneven_bench.recommendation.page import scaling_page

PICTURES = Path(__file__).parents[4] / "docs" / "pictures"
FAST = (60_000.0, 40_000.0, 20_000.0, 10_000.0)
"""Samples per second of workers whose steps are shown in milliseconds."""
NAMES = sorted(path.stem for path in PICTURES.glob("*.png"))


def printed(*words: str, columns: int | None = None) -> str:
    """Run a command in this process; make.py starts a process for each."""
    output = io.StringIO()
    with redirect_stdout(output), pytest.raises(SystemExit) as ended:
        main(list(words))
    assert ended.value.code == 0
    return output.getvalue()


@pytest.fixture(scope="module")
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_pictures", PICTURES / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.uneven = printed  # type: ignore[attr-defined]
    return module


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders and pages where make.py keeps them, of runs and benches that take too long for a test."""
    runs = tmp_path_factory.mktemp("runs")
    plain, balanced = (SampleRun(speeds_per_s=FAST).write(runs / "demo" / name) for name in ("a-plain", "a-balanced"))
    (runs / "demo" / "a-demo.html").write_text(comparison.comparison({"DDP": plain, "uneven": balanced}))
    SampleRun(speeds_per_s=FAST).write(runs / "emulated")
    (runs / "fleet-plan.html").write_text(fleet_plan._pictures())
    unequal = [{"share": share, "per_s": 100.0 * share} for share in (0.8, 0.4, 0.2, 0.2)]
    result = {"rounds": 1, "examples_per_s": {"1 at 0.2 core": 20.0}, "scaling": {"1": 1.0, "8": 0.9}}
    (runs / "recommendation.html").write_text(scaling_page(result | {"trainers_per_s": {"unequal": unequal}}))
    return runs


@pytest.mark.parametrize("name", [name for name in NAMES if name != "plan"])
def test_a_picture_prints_the_names_of_today(name: str, make: ModuleType, runs: Path) -> None:
    assert make.embedded(PICTURES / f"{name}.png") == make.names(make.MADE[name](runs)), f"take {name} again"


def test_the_ranking_has_the_policies_of_today(make: ModuleType) -> None:
    """Balancers that come to the same share a row with a star, and which ones do depends on what is trained."""
    words = [row.split(" ", 2) for row in make.embedded(PICTURES / "plan.png")["rows"]]
    shown = {(balance, sync): carried for balance, sync, carried in words}
    rows = json.loads(printed("plan", "demo4", "--balance", "even,lb-bsp", "--format", "json"))["rows"]
    today = {(row["balance"], row["sync"]): "yes" if row["carried"] else "not yet" for row in rows}
    assert {sync for _, sync in shown} == {sync for _, sync in today}, "take plan again"
    assert all(shown[row] == today[row] for row in shown.keys() & today.keys()), "take plan again"


def test_names_are_those_of_the_code_and_not_of_a_run(make: ModuleType) -> None:
    figure = {"data": [{"name": "lab"}, {"name": "rank 3, off by 1.5 %"}], "layout": {"title": {"text": "cores"}}}
    section = f'<h2>Share</h2><p class="note">A note.</p><script type="application/json">{json.dumps(figure)}</script>'
    page = f"<title>Run lab</title><main><section>{section}</section></main>"
    assert make.names(page) == {"Share": ["A note.", "RUN", "cores", "rank N off by N %"]}
    ranking = "<pre>demo4 17 combinations\n  1 <b>even</b>  shadow:ma  2.16 s  not yet \n 12  even  bsp  1 yes</pre>"
    assert make.names(ranking) == {"rows": ["even bsp yes", "even shadow:ma not yet"]}
