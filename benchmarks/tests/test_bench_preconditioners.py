"""What ``uneven bench preconditioners`` refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from uneven.errors import ConfigError, UnknownNameError
from uneven_bench.preconditioners.arms import RIVAL_AT, rival
from uneven_bench.preconditioners.bench import run


def test_a_source_tree_in_the_place_of_the_installed_rival(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kfac").mkdir()
    (tmp_path / "kfac" / "__init__.py").write_text("import importlib.metadata\nimportlib.metadata.version('no-such')\n")
    monkeypatch.setenv(RIVAL_AT, str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="run `pip install --no-deps --target FOLDER"):
        rival()


@pytest.mark.parametrize("case", ["stepps", "steps:vgg", "exact:mlp", "target:cnn:sopa", "steps:mlp:soap"])
def test_cases_and_models_that_do_not_exist(case: str) -> None:
    with pytest.raises(UnknownNameError, match=r"case|method"):
        run(True, "digits", lambda *_: None, case)
