"""``uneven focus`` from the command line: what --truth may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from uneven.cli import main

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
        ("number", 1, "is of type int: give a Truth, a network, or what makes it"),
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
