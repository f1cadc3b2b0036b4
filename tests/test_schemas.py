"""The JSON Schemas in the package: as the code declares, and never stricter than the readers."""

import copy
import json
import re
import runpy
import tomllib
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from uneven.cluster.pure.describe import parse
from uneven.errors import ConfigError
from uneven.fleet import ensemble_file
from uneven.policy.core import run_config
from uneven.search import search_file

DOCS = Path(__file__).parents[1] / "docs"
SHIPPED = resources.files("uneven") / "schemas"
NAMES = ("cluster", "ensemble", "search", "uneven")
GOOD = {
    "uneven": """
        [run]
        balance = "static:shares=3/2/1/1"
        seed = 1
        overhead_budget = 0.01
        timeout_s = 60
        nonfinite = "raise"
        threads = 2
        keep_freed_memory = false
    """,
    "ensemble": """
        [ensemble]
        dataset = "string:digits"
        transform = "json:loads"
        validate = "string:digits"
        metric = "loss"
        patience = 3
        least = 0.1
        max_epochs = 9
        seed = 1
        [members]
        small = "json:JSONDecoder"
        wide = { factory = "json:JSONDecoder" }
    """,
    "search": """
        [search]
        train = "json:loads"
        metric = "accuracy"
        trials = 8
        scheduler = "asha:max_t=9"
        max_t = 9
        data = "string:digits"
        share = true
        warm_start = ["runs/one"]
        points_to_evaluate = [{ lr = 0.01 }]
        time_budget_s = 60
        [space]
        lr = { loguniform = [1e-4, 1e-1] }
        width = { choice = [32, 64] }
        batch = 64
    """,
    "cluster": """
        name = "all"
        assumptions = ["none"]
        [workload]
        global_batch = 64
        framing = 1.5
        [tables]
        dim = 8
        [preconditioner]
        layers = [[3, 2]]
        [defaults]
        up_bit_per_s = 1e9
        [[nodes]]
        name = "a"
        cores = 2
        share = { values = [1.0, 0.5], step_s = 60 }
        load = { file = "use.csv", column = "load", step_s = 60, first = 1 }
        memory_samples = 64
        site = "eu"
        cost = { kind = "affine", overhead_s = 0.1, per_sample_s = 0.2 }
        [[nodes]]
        name = "b"
        cost = { kind = "measured", points = [[1, 0.1], [2, 0.2]] }
        site = "us"
        latency_s = 0.1
        [[links]]
        between = ["eu", "us"]
        bit_per_s = 1e8
        [[events]]
        do = "cut_link"
        between = ["eu", "us"]
        at_s = 3
        for_s = 2
        factor = 0.5
    """,
}
OTHERS = (
    -1,
    0.5,
    1e300,
    "x",
    "string:digits",
    True,
    [],
    [[]],
    [1, 2, 3],
    {},
    {"x": 1},
    {"values": ["x"]},
    {"kind": "affine"},
)
"""Values to put at any place of a good document."""


def checker(name: str) -> Draft7Validator:
    return Draft7Validator(json.loads((SHIPPED / f"{name}.schema.json").read_text()))


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{json.dumps(key)} = {toml(one)}' for key, one in value.items())} }}"
    return f"[{', '.join(map(toml, value))}]" if isinstance(value, list) else json.dumps(value)


@pytest.fixture
def readers(tmp_path: Path) -> dict[str, Callable[[Any], object]]:
    def file(read: Callable[[Path], object]) -> Callable[[Any], object]:
        def take(document: Any) -> object:
            (tmp_path / "it.toml").write_text("\n".join(f"{key} = {toml(one)}" for key, one in document.items()))
            return read(tmp_path / "it.toml")

        return take

    return {
        "cluster": lambda document: parse.from_table(document, lambda series: (1.0, 0.5, 0.25)),
        "uneven": file(lambda path: run_config.merge({"it": run_config.from_toml(path.read_bytes(), "it")})),
        "ensemble": file(ensemble_file.read),
        "search": file(search_file.read),
    }


def changed(document: Any) -> Iterator[Any]:
    """Yield documents with another value at one place, without one key, or with an unknown one."""
    for key in document if isinstance(document, dict) else range(len(document)):
        for value in OTHERS:
            other = copy.copy(document)
            other[key] = value
            yield other
        if isinstance(document[key], dict | list):
            for inner in changed(document[key]):
                other = copy.copy(document)
                other[key] = inner
                yield other
    if isinstance(document, dict):
        yield {**document, "unknown": 1}
        for key in document:
            yield {name: value for name, value in document.items() if name != key}


def test_they_are_those_of_the_code() -> None:
    written = runpy.run_path(str(DOCS / "schemas.py"))
    assert sorted(written["SCHEMAS"]) == sorted(NAMES)
    for name in NAMES:
        assert (SHIPPED / f"{name}.schema.json").read_text() == written["written"](name), "run `python docs/schemas.py`"
        Draft7Validator.check_schema(json.loads(written["written"](name)))


@pytest.mark.parametrize("name", NAMES)
def test_they_refuse_nothing_that_the_reader_takes(name: str, readers: dict[str, Callable[[Any], object]]) -> None:
    good, checks, refused = tomllib.loads(GOOD[name]), checker(name), {True: 0, False: 0}
    assert [error.message for error in checks.iter_errors(good)] == []
    readers[name](good)
    for document in changed(good):
        try:
            readers[name](document)
        except ConfigError:
            refused[checks.is_valid(document)] += 1
        else:
            assert [error.message for error in checks.iter_errors(document)] == [], document
    assert refused[False] > 2 * refused[True], f"a schema finds most mistakes: {refused}"


def test_they_take_all_that_the_package_and_its_pages_hold() -> None:
    found = {name: [GOOD[name]] for name in NAMES}
    found["cluster"] += [
        one.read_text()
        for one in (resources.files("uneven.cluster") / "shipped").iterdir()
        if one.name.endswith(".toml")
    ]
    keys = {"nodes": "cluster", "ensemble": "ensemble", "search": "search", "run": "uneven"}
    for page in DOCS.rglob("*.md"):
        for block in re.findall(r"^```toml\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL):
            name = next((keys[key] for key in tomllib.loads(block) if key in keys), None)
            if name and ("name" in tomllib.loads(block) or name != "cluster"):
                found[name].append(block)
    assert min(map(len, found.values())) > 1
    for name, texts in found.items():
        for text in texts:
            assert [error.message for error in checker(name).iter_errors(tomllib.loads(text))] == [], text
