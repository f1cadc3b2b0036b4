"""``uneven focus`` from the command line: what --truth may name."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from uneven.cli import main
from uneven.focus.query import Hit

MODELS = """
class Names:
    classes = ("red", "blue")

    def __init__(self):
        print("made")

    def __call__(self, crops):
        return crops

names, number = Names(), 3
"""


@pytest.mark.parametrize(
    ("name", "made", "told"),
    [
        ("number", 1, "is of type int: give a Truth, a network, or a function that returns one"),
        ("names", 1, "cannot open the video"),  # a network was found, and the video comes next
        ("Names", 2, "cannot open the video"),
    ],
)
def test_a_truth_network_is_a_network_or_what_makes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, made: int, told: str
) -> None:
    (tmp_path / f"truths_of_{name}.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["focus", "ingest", "none.mp4", "--truth", f"truths_of_{name}:{name}", "--into", "index"])
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert told in " ".join(said.err.split())
    assert said.out.count("made") == made


def test_places_are_lines_of_text_or_of_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hits = [Hit("cam", frame, frame / 2, (1, 2, 3, 4), 0.5, 6) for frame in (8, 9)]
    cost = SimpleNamespace(candidates=2, checked=1, alike=1, known=0, sure=0)

    def opened(*_: Any) -> Any:
        return SimpleNamespace(query=lambda *_: iter(hits), cost=cost)

    monkeypatch.setattr("uneven.focus.load_index", opened)
    for words in ([], ["--format", "json"]):
        with pytest.raises(SystemExit) as ended:
            main(["focus", "query", "index", "car", *words])
        assert ended.value.code == 0
        said = capsys.readouterr()
        assert said.err.startswith("2 objects; 2 clusters may contain the class")
        lines = said.out.splitlines()
        if not words:
            assert lines == ["stream\tframe\ttime_s\tbox\tconfidence", "cam\t8\t4.00\t1,2,3,4\t0.500",
                             "cam\t9\t4.50\t1,2,3,4\t0.500"]  # fmt: skip
            continue
        assert [json.loads(line) for line in lines] == [{**asdict(one), "box": [1, 2, 3, 4]} for one in hits]
