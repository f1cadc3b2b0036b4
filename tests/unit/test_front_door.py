"""The front door: every name leads somewhere, and nobody waits for torch who does not need it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import uneven
from uneven.policy.core.registry import Registry

ROOT = Path(__file__).parents[2]


def modules_after(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after running ``code``."""
    show = "import sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{show}"], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.splitlines()[-1].split())


def test_import_alone_loads_no_torch() -> None:
    assert not modules_after("import uneven") & {"torch", "numpy", "typer", "rich", "psutil"}


def test_only_what_trains_loads_torch() -> None:
    trains = {"Session", "KFAC", "Muon", "SOAP", "SiteEvaluation", "ThreadLines", "notebook_launch"}
    names = ", ".join(f"uneven.{name}" for name in uneven.__all__ if name not in trains)
    assert "torch" not in modules_after(f"import uneven; {names}")


def test_the_check_sees_torch_where_it_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "torch.py").touch()  # the import of the real one takes seconds
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import uneven\ntry:\n    uneven.Session\nexcept"
    assert "torch" in modules_after(f"{code} (ImportError, AttributeError):\n    pass")


@pytest.mark.parametrize("name", uneven.__all__)
def test_every_name_resolves(name: str) -> None:
    assert getattr(uneven, name) is not None
    assert name in dir(uneven)


def test_the_three_lists_of_names_agree() -> None:
    tree = ast.parse(Path(uneven.__file__).read_text())
    typed = [
        (node.module, alias.name)
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert sorted(name for _, name in typed) == sorted(uneven.__all__)
    homes = {name: module for module, names in uneven._HOMES.items() for name in names}
    assert homes | {"balance": "uneven", "sync": "uneven"} == dict(map(reversed, typed))


def test_the_door_has_what_plug_ins_are_written_with_and_none_that_comes_along() -> None:
    registries = [value for name in uneven.__all__ if isinstance(value := getattr(uneven, name), Registry)]
    bases = {registry.base for registry in registries}
    assert {base.__name__ for base in bases} >= {"Balancer", "Predictor", "SyncPolicy"}
    shown = {value for name in uneven.__all__ if isinstance(value := getattr(uneven, name), type)}
    made = {one for one in shown if issubclass(one, tuple(bases))}
    wrapping = {uneven.WrappingBalancer, uneven.WrappingPolicy}
    assert made == bases | wrapping | {uneven.Add, uneven.Elastic, uneven.Mean}


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Sesion'"):
        uneven.Sesion  # noqa: B018


def test_all_files_name_the_version_of_the_package() -> None:
    """A build reads it where the package has it; these files cannot."""
    version = re.escape(uneven.__version__)
    named = {
        "benchmarks/pyproject.toml": rf'^version = "{version}"$(.|\n)*"uneven=={version}"',
        "CITATION.cff": rf"^version: {version}$",
        "docs/cite.md": rf"^  version = \{{{version}\}},$",
        "CHANGELOG.md": rf"^## {version}\b",
    }
    assert [file for file, how in named.items() if not re.search(how, (ROOT / file).read_text(), re.MULTILINE)] == []
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["version"]
    found = re.search(build["pattern"], (ROOT / build["path"]).read_text())
    assert found is not None
    assert found["version"] == uneven.__version__
