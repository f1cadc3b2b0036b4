"""What an install without extras can do, and what it says when an extra is missing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
MISSING = (
    "plotly",
    "scipy",
    "sklearn",
    "pynvml",
    "av",
    "optuna",
    "ray",
    "numba",
    "pymetis",
    "pandas",
    "prometheus_client",
)
BLOCK = f"""
import sys
asked = []
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {MISSING!r}:
            asked.append(name)
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name.partition(".")[0] in {MISSING!r} else found(name, *rest)
sys.meta_path.insert(0, Blocked())
import contextlib, io, json
answers = []
for code in json.load(sys.stdin):
    with contextlib.redirect_stderr(io.StringIO()) as errors, contextlib.redirect_stdout(sys.stderr):
        try:
            exec(code, {{}})
            status = 0
        except SystemExit as ended:
            status = ended.code or 0
        except Exception as error:
            status = f"{{type(error).__name__}}: {{error}}"
    answers.append((status, errors.getvalue(), [*asked]))
    asked.clear()
print(json.dumps(answers))
"""


def test_a_training_needs_six_packages() -> None:
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.match(r"[\w-]+", need)[0] for need in needs}  # type: ignore[index]
    assert names == {"torch", "numpy", "psutil", "pyzmq", "typer", "rich"}


CALLS = [
    (
        "import sys, uneven.cli.run, uneven.cli.watch, uneven.cli.demo.show, uneven.cli.demo.demo_worker as _; "
        "assert 'torch' in sys.modules",
        None,
    ),
    ("import uneven, uneven.embedding, uneven.fleet, uneven.graph, uneven.search, uneven.integrations", None),
    ("from uneven import KFAC, Session; Session().close()", None),
    ("from uneven.cli import main; main(['simulate', 'demo4', '--no-journal', '--iterations', '5'])", None),
    ("from uneven.testing.digits import load_digits; load_digits()", None),
    ("from uneven.cli import main; main(['report', 'nowhere'])", "report"),
    ("from uneven import focus", "focus"),
    ("from pathlib import Path; from uneven.cli.watch import _serve; _serve(Path(), 0, 1.0)", "report"),
    ("from uneven.cli import main; main(['watch', 'nowhere', '--prometheus', '0'])", "prometheus"),
    ("from uneven.cli import main; main(['fleet', 'run', 'nowhere.toml', '--report', 'page.html'])", "report"),
    ("from uneven.cli import main; main(['search', 'run', 'nowhere.toml', '--report', 'page.html'])", "report"),
    ("from uneven.cli import main; main(['graph', 'partition', 'nowhere.npz', 'p', '--parts', '2'])", "graph"),
    ("import torch; from uneven import graph; graph.partition(torch.tensor([[0], [1]]), 2, path='p')", "graph"),
]


def test_a_missing_extra_is_named_when_it_is_needed(tmp_path: Path) -> None:
    words = [sys.executable, "-c", BLOCK]
    calls = json.dumps([code for code, _ in CALLS])  # one process, as each imports torch for two seconds
    done = subprocess.run(words, input=calls, capture_output=True, text=True, cwd=tmp_path, check=True)
    answers = json.loads(done.stdout)
    # Commands that train import none of these. What is asked for is imported where it is installed.
    assert {"plotly", "scipy", "sklearn"}.isdisjoint(name.partition(".")[0] for name in answers[0][2])
    for (code, extra), (status, errors, _) in zip(CALLS, answers, strict=True):
        if extra is None:
            assert status == 0, f"{code}: {status} {errors}"
        else:
            assert status != 0, code
            assert f"pip install '.[{extra}]'" in f"{status} {errors}", code
