"""Scripts that search, as a user starts them."""

from __future__ import annotations

import os
from pathlib import Path

from brought import brought, refusal
from uneven.errors import TrainingError
from uneven.runtime.jobs.processes import import_path
from uneven_bench.forked.scripts import run_script

SCRIPT = """
from uneven import search


def train(trial):
    return trial["x"]


print("from the top")
search.run(train, {"x": search.uniform(0, 1)}, metric="score", devices=1, progress=False, directory="run")
"""


@brought("searches", "Optuna, Ray Tune", "a script without a main guard", refused=True)
def test_a_script_that_searches_without_a_guard_is_told_so_once(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = run_script(["script.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": import_path()})
    assert done.returncode != 0
    assert done.stderr.count("Traceback") == 1, done.stderr
    with refusal('only under if __name__ == "__main__":'):
        raise TrainingError(done.stderr.splitlines()[-1])
