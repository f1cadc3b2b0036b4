"""A byte-order mark at the head of a text file, as editors on Windows write it, changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from brought import brought
from uneven.cluster import files
from uneven.cluster.pure.describe.quantities import Recorded
from uneven.cluster.series import SeriesFiles
from uneven.fleet import ensemble_file
from uneven.fleet.engine.fleet_state import SCHEMA, load
from uneven.journal import rank_path, read
from uneven.policy.core.records import EventRecord, to_json
from uneven.policy.core.tables import document
from uneven.runtime.rundir import file_layer, load_layers
from uneven.search import search_file
from uneven.search.search_events import ASKED, EVENTS, asked_in, read_events

BOM = b"\xef\xbb\xbf"
EVENT = EventRecord(rank=0, iteration=5, at_s=1.0, event="cut_link", message="100 Mbit/s left")


def series(path: Path) -> Any:
    return [SeriesFiles(path.parent)(Recorded(file=path.name, column=one)) for one in ("load", 1)]


@pytest.mark.parametrize(
    ("name", "text", "reader"),
    [
        pytest.param("uneven.toml", '[run]\nsync = "ssp"\n', file_layer, id="settings"),
        pytest.param(
            "run.toml", '[[layer]]\nsource = "a"\n[layer.run]\nseed = 3\n', lambda one: load_layers(one.parent), id="a"
        ),
        pytest.param(
            "search.toml", '[search]\ntrain = "json:dumps"\nmetric = "score"\n[space]\nx = { loguniform = [0.1, 1] }\n',
            search_file.read, marks=brought("searches", "editors", "a search in TOML with a byte-order mark"),
        ),
        pytest.param(
            "ensemble.toml",
            '[ensemble]\ndataset = "string:digits"\nmetric = "loss"\n[members]\na = "fractions:Fraction"\n',
            lambda one: sorted(ensemble_file.read(one).members), id="ensemble",
        ),
        pytest.param("text.toml", "a = 1\n", lambda one: document(one.read_text("utf-8"), "text"), id="text"),
        pytest.param("a.csv", "load,b\n1,2\n3,4\n", series, id="series"),
        pytest.param(ASKED, json.dumps({"metric": "a"}), lambda one: asked_in(one.parent), id="asked"),
        pytest.param(EVENTS, '{"event": "end", "at_s": 1.5}\n', lambda one: read_events(one.parent), id="events"),
        pytest.param(
            "state.json", json.dumps({"schema": SCHEMA, "asked": {"members": []}, "members": {}}),
            lambda one: load(one.parent, {"members": []}), id="fleet",
        ),
    ],
)  # fmt: skip
def test_a_byte_order_mark_changes_nothing(tmp_path: Path, name: str, text: str, reader: Callable[[Path], Any]) -> None:
    (tmp_path / name).write_text(text)
    plain = reader(tmp_path / name)
    (tmp_path / name).write_bytes(BOM + text.replace("\n", "\r\n").encode())
    assert reader(tmp_path / name) == plain
    assert plain


def test_a_journal_keeps_its_first_record(tmp_path: Path) -> None:
    path = rank_path(tmp_path, 0)
    path.parent.mkdir(parents=True)
    path.write_bytes(BOM + to_json(EVENT).encode() + b"\n")
    assert read(tmp_path).ranks == {0: (EVENT,)}


def test_a_cluster_is_read(tmp_path: Path) -> None:
    whole = Path(files.__file__).parent / "shipped" / "demo4.toml"
    (tmp_path / "a.toml").write_bytes(BOM + whole.read_bytes())
    assert files.load(tmp_path / "a.toml") == files.load(whole)
