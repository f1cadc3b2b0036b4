"""The pages of the Python API name every public object, and their build is `make docs`."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import uneven

DOCS = Path(__file__).parents[1] / "docs"
API = DOCS / "api"


def test_every_public_name_is_on_a_page_of_the_api() -> None:
    pages = "\n".join(page.read_text() for page in API.glob("*.md"))
    registries = {"balancers", "merges", "policies", "predictors"}  # their names have tables in docs/reference.md
    named = set(re.findall(r"auto(?:class|function):: uneven\.(\w+)$", pages, flags=re.MULTILINE))
    errors = {name for name in uneven.__all__ if name.endswith(("Error", "Warning"))}
    modules = {"balance", "sync"}  # their classes have tables in docs/reference.md
    assert "automodule:: uneven.errors" in pages
    assert named == set(uneven.__all__) - registries - errors - modules


def test_every_package_with_public_names_has_a_page() -> None:
    source = Path(uneven.__file__).parent
    pages = "\n".join(page.read_text() for page in API.glob("*.md"))
    packages = [path.parent.name for path in source.glob("*/__init__.py") if "__all__" in path.read_text()]
    assert packages
    assert [name for name in packages if f"automodule:: uneven.{name}\n" not in pages] == []


def test_the_drawing_of_the_concepts_is_that_of_its_script() -> None:
    drawn = runpy.run_path(str(DOCS / "pictures" / "concepts.py"))["drawn"]()
    assert (DOCS / "pictures" / "concepts.svg").read_text() == drawn, "run `python docs/pictures/concepts.py`"
