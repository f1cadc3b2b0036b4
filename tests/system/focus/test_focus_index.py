"""A stream is taken in and asked; what was written survives whatever ends the process."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import colours
import numpy as np
import pytest
import torch
from colours import NAMES, Colours, by_colour, frames_with, sprites

from uneven import focus
from uneven.errors import CheckpointError, ConfigError, DataError, TrainingError, UnknownNameError
from uneven.focus import ingest_stream
from uneven.focus.background_subtraction import Moving
from uneven.focus.focus_report import page
from uneven.focus.index import FileHold, StreamStore
from uneven.focus.ingest_stream import Counts, Ingest, IngestOptions
from uneven.focus.networks import LadderRung, run
from uneven.focus.objects import Objects, found
from uneven.focus.pure.verdict_propagation import NO_PRECEDENTS, Precedents
from uneven.focus.supervise import Cameras, over, supervise, table
from uneven.focus.tune import restored
from uneven.runtime.jobs.engines import Local

pytest.importorskip("av")
SIDE = 16
QUICK = focus.Wanted(sample_s=160, epochs=4, ladder=(LadderRung(4, 16),), named=(3,), devices=1, confidence=0)


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    """One stream, as a user takes it in; its settings serve the other tests."""
    into = tmp_path_factory.mktemp("focus") / "index"
    told = []
    index = focus.ingest(sprites(), focus.Truth(Colours(), side=SIDE), into=into, wanted=QUICK, show=told.append)
    assert [update.step for update in told][:2] == ["tune", "tune"]
    assert told[-1].counts.done
    return index


def again(taken, folder: Path, known: Precedents = NO_PRECEDENTS, **other: float) -> StreamStore:
    """An empty index with the settings of another one, but for some."""
    before = taken.streams["sprites"]
    facts = {key: before.fact(key) for key in ("name", "side", "classes", "truth", "starts", "per_s", "recall",
                                               "precision", "policy", "confidence", "price", "truth_work")}  # fmt: skip
    setting, weights = {**before.networks()[1], **other}, before.weights(1)
    return StreamStore.create(folder, setting, weights, known, **facts)


def precedents(taken) -> Precedents:
    """The sample's verdicts; black things do not come in it."""
    objects = Objects.join(list(found(sprites(160).frames(1.0), Moving(), SIDE)), SIDE)
    store = taken.streams["sprites"]
    feature = run(restored(store.networks()[1], store.weights(1))[1], objects.crops)[1]
    known = Precedents.sample(feature, *taken.truth.label(objects.crops))
    assert {NAMES[one] for one in known.label} == set(NAMES) - {"black"}
    return known


def rows(folder: Path) -> dict[str, list]:
    """All that an index says about the stream."""
    with sqlite3.connect(folder / "index.db") as db:
        found = {
            name: db.execute(f"SELECT * FROM {name} ORDER BY 1, 2, 3").fetchall() for name in ("objects", "entries")
        }
        found["clusters"] = db.execute("SELECT id, network, sealed FROM clusters ORDER BY id").fetchall()
        found["features"] = db.execute("SELECT * FROM embeddings ORDER BY cluster").fetchall()
        assert len(found["features"]) == len(found["clusters"])
    found["crops"] = [(folder / "crops.bin").read_bytes()[: len(found["clusters"]) * SIDE * SIDE * 3]]
    return found


def test_an_index_that_is_not_whole_is_none(taken, tmp_path, monkeypatch):
    def ended(*_: object) -> int:
        raise Interrupted

    with monkeypatch.context() as patched:
        patched.setattr("uneven.focus.index._insert_network", ended)
        with pytest.raises(Interrupted):
            again(taken, tmp_path / "sprites")
    assert not (tmp_path / "sprites" / "index.db").exists()
    assert again(taken, tmp_path / "sprites").networks().keys() == {1}


def test_no_core_at_all_is_refused_and_not_taken_for_all_of_them(taken, tmp_path):
    again(taken, tmp_path / "sprites").close()
    with pytest.raises(ConfigError, match="devices=0: give at least one"):
        focus.ingest(sprites(), focus.Truth(Colours(), side=SIDE), into=tmp_path, wanted=QUICK, devices=0)


def test_every_class_is_found_where_it_is_named_or_not(taken):
    source = sprites()
    named = taken.streams["sprites"].networks()[1]["named"]
    for name in NAMES:
        truth = frames_with(name, source)
        found = {hit.frame for hit in taken.query(name)}
        both = len(truth & found)
        assert both >= 0.95 * len(truth), (name, NAMES.index(name) in named)
        assert both >= 0.95 * len(found)
        assert both > 0


def test_a_second_query_makes_no_call_of_the_truth_network(taken):
    first = sorted(taken.query("green"), key=repr)  # what is known comes before what is asked
    calls = taken.truth.calls
    again = list(taken.query("green"))
    assert sorted(again, key=repr) == first
    assert taken.truth.calls == calls
    without = focus.load_index(taken.folder)
    assert list(without.query("green")) == again


def test_clusters_that_were_sealed_and_begun_again_are_asked_about_once(taken, tmp_path):
    folder = tmp_path / "few" / "sprites"
    Ingest(again(taken, folder), sprites(), IngestOptions(most_active=2)).run()
    index = focus.load_index(folder.parent, taken.truth)
    assert index.streams["sprites"].clusters() > 2 * taken.streams["sprites"].clusters()
    for name in NAMES:
        hits = list(index.query(name))
        frames, truth = {hit.frame for hit in hits}, frames_with(name, sprites())
        assert len(frames & truth) >= 0.95 * max(len(truth), len(frames))
        calls = taken.truth.calls
        assert sorted(focus.load_index(folder.parent).query(name), key=repr) == sorted(hits, key=repr), (
            "without the network"
        )
        assert sorted(index.query(name), key=repr) == sorted(hits, key=repr)
        assert taken.truth.calls == calls
    cost = index.cost
    assert cost.alike > cost.checked
    assert cost.checked <= 1.2 * taken.streams["sprites"].clusters()


def test_verdicts_are_spread_as_far_as_the_setting_says_and_stay(taken, tmp_path):
    calls = {}
    for spread in (0.0, 0.1):
        folder = tmp_path / f"{spread}" / "sprites"
        Ingest(again(taken, folder, precedents(taken), spread=spread, threshold=0.0, skip=1.0), sprites()).run()
        index = focus.load_index(folder.parent, focus.Truth(Colours(), side=SIDE))
        first = {name: sorted(index.query(name), key=repr) for name in NAMES[:-1]}
        calls[spread] = index.truth.calls
        for name, hits in first.items():
            frames, truth = {hit.frame for hit in hits}, frames_with(name, sprites())
            assert len(frames & truth) >= 0.95 * max(len(truth), len(frames))
        for later in (index, focus.load_index(folder.parent)):  # what other classes' verdicts have told meanwhile
            assert {name: sorted(later.query(name), key=repr) for name in first} == first
        assert later.cost.alike == 0, "what was settled is known"
        assert index.truth.calls == calls[spread] == index.streams["sprites"].judgements()
        index.streams["sprites"].forget_verdicts()
        list(index.query("red"))
        assert index.truth.calls > calls[spread]
    assert 0 < calls[0.1] < 0.2 * calls[0.0]


def test_what_the_sample_has_shown_is_not_asked_again_and_speaks_for_the_stream(taken, tmp_path):
    """A class that did not come in it is looked for everywhere, for the small network has never learnt it."""
    every = precedents(taken)
    label, calls = every.label, {}
    for what, kept in (("nothing", label < 0), ("without blue", label != NAMES.index("blue")), ("all", label >= 0)):
        known = Precedents.sample(every.feature[kept], label[kept], every.score[kept])
        own = again(taken, tmp_path / what / "sprites", known, spread=0.1, threshold=0.0, skip=1.0)
        Ingest(own, sprites()).run()
        index = focus.load_index(tmp_path / what, focus.Truth(Colours(), side=SIDE))
        for name in NAMES:
            before = index.truth.calls
            hits = {hit.frame for hit in index.query(name)}
            truth = frames_with(name, sprites())
            assert len(hits & truth) >= 0.95 * max(len(truth), len(hits))
            calls[what, name] = index.truth.calls - before
            index.streams["sprites"].forget_verdicts()
        assert index.streams["sprites"].judgements() == 0
        assert len(index.streams["sprites"].precedents(1).label) == kept.sum(), "the sample's are not forgotten"
    for name in NAMES:
        assert (calls["all", name] < 0.2 * calls["nothing", name]) == (name != "black")
    assert calls["without blue", "blue"] > 0.5 * calls["nothing", "blue"]


def test_each_network_has_precedents_of_its_own(taken, tmp_path):
    known = Precedents.sample(np.eye(2, 3, dtype=np.float32), np.array([1, 0]), np.array([0.5, 1], np.float32))
    store = again(taken, tmp_path / "two", known)
    other = Precedents.sample(np.ones((1, 5), np.float32), np.array([2]), np.ones(1, np.float32))
    number = store.add_network({}, b"", other)
    assert number == 2
    assert [store.precedents(one).feature.tolist() for one in (number - 1, number)] == [
        known.feature[::-1].tolist(), other.feature.tolist()
    ]  # fmt: skip
    assert [store.precedents(one).cluster.tolist() for one in (number - 1, number)] == [[-2, -1], [-3]]
    store.keep_verdicts([0], [1], [0.5])
    assert store.judged(1) == [0]


def test_features_are_those_of_ingest_and_an_older_index_has_them_made_once(taken, tmp_path, monkeypatch):
    folder = tmp_path / "index" / "sprites"
    Ingest(again(taken, folder), sprites()).run()
    with sqlite3.connect(folder / "index.db") as db:
        kept = db.execute("SELECT COUNT(*) FROM embeddings").fetchone()[0]
        db.execute("DROP TABLE embeddings")
        db.execute("DROP TABLE settled")
    looks = []
    monkeypatch.setattr("uneven.focus.query.run", lambda model, crops: (looks.append(len(crops)), run(model, crops))[1])
    index = focus.load_index(folder.parent, focus.Truth(Colours(), side=SIDE))
    hits = {name: {hit.frame for hit in index.query(name)} for name in NAMES}
    assert 0 < sum(looks) <= kept
    index.streams["sprites"].forget_verdicts()
    before = list(looks)
    assert {name: {hit.frame for hit in index.query(name)} for name in NAMES} == hits
    taken.streams["sprites"].forget_verdicts()
    assert {name: {hit.frame for hit in taken.query(name)} for name in NAMES} == hits
    assert looks == before


def test_a_time_range_asks_only_for_what_is_in_it(taken, tmp_path):
    later = [hit for hit in taken.query("red") if 100 <= hit.time_s < 200]
    assert sorted(taken.query("red", between=(100, 200)), key=repr) == sorted(later, key=repr)
    assert list(taken.query("red", between=("00:01:40", "00:03:20"))) == list(taken.query("red", between=(100, 200)))
    with pytest.raises(ConfigError, match="an end that is after the beginning"):
        list(taken.query("red", between=(10, 10)))
    with pytest.raises(ConfigError, match="'noon' is not a time"):
        list(taken.query("red", between=("noon", "13:00")))


def test_names_that_nobody_knows_and_other_truths_are_refused(taken):
    with pytest.raises(UnknownNameError, match="did you mean 'yellow'"):
        taken.query("yelow")
    with pytest.raises(UnknownNameError, match="unknown stream 'sprite'"):
        taken.query("red", streams=["sprite"])
    with pytest.raises(CheckpointError, match=r"without black; ingest into another folder"):
        focus.load_index(taken.folder, focus.Truth(Colours(), classes=[*NAMES[:-1], "dark"], side=SIDE))


def test_settings_that_were_chosen_cost_less_and_say_what_they_reach(taken):
    setting = taken.streams["sprites"].networks()[1]
    assert setting["ingest"] < 1
    assert setting["query"] < 0.5  # squares stay for several frames: clusters save calls
    assert all(one["recall"]["least"] <= one["recall"]["value"] <= 1 for one in setting["results"])
    assert all(one["recall"]["value"] >= 0.99 and one["precision"]["value"] >= 0.99 for one in setting["results"])


def test_a_filter_of_the_query_keeps_the_truth_network_from_looking(taken, tmp_path):
    store = again(taken, tmp_path / "index" / "sprites")
    Ingest(store, sprites(100)).run()
    index = focus.load_index(tmp_path / "index", focus.Truth(Colours(), side=SIDE))
    assert list(index.query("red", reject=lambda crops: np.ones(len(crops), bool), skip=1.0)) == []
    assert index.truth.calls == 0
    assert index.cost.rejected > 0
    assert list(index.query("red", skip=1.0))


def test_a_damaged_index_is_refused_by_name(tmp_path):
    (tmp_path / "cam").mkdir()
    for text in ("no database, though longer than the header of one" * 4, ""):
        (tmp_path / "cam" / "index.db").write_text(text)
        with pytest.raises(
            CheckpointError, match=r"index\.db cannot be read as an index .*: delete .*, and ingest again"
        ):
            focus.load_index(tmp_path)


class Interrupted(Exception):
    pass


def test_after_an_end_at_any_writing_the_index_becomes_the_undisturbed_one(taken, tmp_path, monkeypatch):
    monkeypatch.setattr("uneven.focus.ingest_stream._WRITE_EVERY_S", 0.0)
    Ingest(again(taken, tmp_path / "whole"), sprites()).run()
    cut = again(taken, tmp_path / "cut")
    ends = []

    def ended(counts: Counts) -> None:
        ends.append(counts.next_frame)
        if len(ends) % 2 == 0 and not counts.done:
            raise Interrupted

    for _ in range(20):
        try:
            Ingest(cut, sprites(), tell=ended).run()
            break
        except Interrupted:
            with (tmp_path / "cut" / "crops.bin").open("ab") as crops:
                crops.write(b"half a crop")
    assert len(ends) > 4
    assert rows(tmp_path / "cut") == rows(tmp_path / "whole")
    Ingest(cut, sprites()).run()  # nothing is left to do
    assert rows(tmp_path / "cut") == rows(tmp_path / "whole")


@dataclass(frozen=True)
class Deadly:
    """Kills the process that reads it, once at each of some frames."""

    source: focus.Sprites
    folder: Path
    at: tuple[int, ...] = (300, 700)
    name: str = "s"
    live: bool = False

    def length_s(self):
        return self.source.length_s()

    def frames(self, per_s, first=0):
        ingest_stream._WRITE_EVERY_S = 0.0
        for frame in self.source.frames(per_s, first):
            mark = self.folder / f"killed at {frame.number}"
            if frame.number in self.at and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield frame


def test_a_killed_process_is_begun_again_where_it_had_written(taken, tmp_path):
    Ingest(again(taken, tmp_path / "whole"), sprites(900)).run()
    again(taken, tmp_path / "killed").close()
    told = []
    cameras = Cameras(sources={"s": Deadly(sprites(900), tmp_path)}, folders={"s": tmp_path / "killed"})
    with closing(Local()) as here:
        supervise(cameras, here, lambda name, counts: told.append(counts))
    assert len(list(tmp_path.glob("killed at *"))) == 2
    assert told[-1].done
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")


def test_objects_that_do_not_change_are_looked_at_once(taken, tmp_path):
    still = sprites(200, stays=(12, 20))
    every = Ingest(again(taken, tmp_path / "every"), still).run()
    fewer = Ingest(again(taken, tmp_path / "fewer"), still, IngestOptions(same=40.0)).run()
    assert fewer.objects == every.objects == every.looked
    assert fewer.looked < every.looked


def test_two_ingests_into_one_stream_are_refused(taken, tmp_path):
    with (
        closing(FileHold(tmp_path / "index" / "sprites" / "owner")),
        pytest.raises(ConfigError, match="by another ingest"),
    ):
        focus.ingest(sprites(), focus.Truth(Colours(), side=SIDE), into=tmp_path / "index", wanted=QUICK)


def test_a_full_disk_ends_with_a_word_and_keeps_what_was_written(taken, tmp_path):
    store = again(taken, tmp_path / "full" / "sprites")
    store.close()
    script = (
        "import resource, sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; from colours import sprites; from uneven.focus.index import StreamStore\n"
        "import uneven.focus.ingest_stream as taking; taking._WRITE_EVERY_S = 0.0\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))\n"
        "taking.Ingest(StreamStore(Path(sys.argv[2])), sprites()).run()\n"
    )
    here = str(Path(colours.__file__).parent)
    full = str(tmp_path / "full" / "sprites")
    over_ = subprocess.run([sys.executable, "-c", script, here, full], capture_output=True,
                           text=True, timeout=120)  # fmt: skip
    assert "cannot write the index" in over_.stderr
    assert "earlier commits are kept" in over_.stderr
    Ingest(StreamStore(tmp_path / "full" / "sprites"), sprites()).run()
    Ingest(again(taken, tmp_path / "whole"), sprites()).run()
    assert rows(tmp_path / "full" / "sprites") == rows(tmp_path / "whole")


class Live:
    """Frames that come whether anybody takes them or not."""

    name, live = "live", True

    def __init__(self, source: focus.Sprites) -> None:
        self.source = source

    def length_s(self):
        return None

    def frames(self, per_s, first=0):
        return self.source.frames(per_s, first)


def test_a_live_stream_that_is_too_fast_loses_frames_and_says_how_many(taken, tmp_path):
    slow = threading.Event()

    def detector(pixels):
        slow.wait(0.01)
        return np.zeros((0, 4), np.int32)

    counts = Ingest(again(taken, tmp_path / "live"), Live(sprites(400)), IngestOptions(detector=detector)).run()
    assert counts.dropped > 0
    assert counts.frames + counts.dropped == 400


def test_a_failure_in_a_stage_is_the_streams_failure(taken, tmp_path):
    def broken(pixels):
        raise DataError("the lens is covered")

    with pytest.raises(DataError, match="the lens is covered"):
        Ingest(again(taken, tmp_path / "broken"), sprites(50), IngestOptions(detector=broken)).run()
    with closing(Local()) as here, pytest.raises(TrainingError, match="the ingest of x ended with"):
        supervise(Cameras(sources={"x": sprites(50)}, folders={"x": tmp_path / "nowhere"}), here)


def test_the_page_and_the_table_show_the_stream(taken):
    list(taken.query("red"))
    html = page(taken, "sprites", ["red"])
    assert html.count("data:image/png;base64,") >= 1
    assert "choose: train the candidates" in html
    assert table(taken).row_count == 1
    assert over(taken)
    with pytest.raises(UnknownNameError):
        page(taken, "sprites", ["rde"])


def test_fresh_video_says_whether_the_targets_still_hold(taken):
    assert focus.drifted(taken, sprites(120, seed=7), sample_s=120).missed == ()
    other = focus.Sprites(
        pictures=255 - sprites().pictures, labels=sprites().labels, seconds=120, size=(96, 128), scale=1
    )
    assert "MISSED" in str(focus.drifted(taken, other, sample_s=120))


def test_words_find_what_looks_like_them_and_centroids_are_embedded_once(taken):
    shown: list[int] = []
    by = by_colour()
    watched = replace(by, picture=lambda crops: (shown.append(len(crops)), by.picture(crops))[1])
    index = focus.load_index(taken.folder)  # no query asks the exact network
    hits = list(index.search("something yellow", watched, most=3))
    assert {hit.frame for hit in hits} <= frames_with("yellow", sprites())
    assert len({hit.cluster for hit in hits}) == 3
    assert [hit.confidence for hit in hits] == sorted((hit.confidence for hit in hits), reverse=True)
    assert hits[0].confidence > 0.95
    assert sum(shown) == index.cost.embedded == taken.streams["sprites"].clusters()
    assert list(focus.load_index(taken.folder).search("something yellow", watched, most=3)) == hits
    assert sum(shown) == index.cost.embedded
    some = list(index.search("red", watched, between=(100, 120)))
    assert some
    assert all(100 <= hit.time_s < 120 for hit in some)


def test_an_embedding_network_that_cannot_be_right_is_refused(taken):
    by = by_colour("narrow")
    with pytest.raises(DataError, match="rows are needed"):
        list(taken.search("red", replace(by, picture=lambda crops: torch.zeros(len(crops), 3))))
    with pytest.raises(DataError, match="rows are needed"):
        list(taken.search("red", replace(by, text=lambda text: [[1.0], [2.0]])))
    with pytest.raises(ConfigError, match="give at least 1"):
        taken.search("red", by, most=0)
    with pytest.raises(UnknownNameError, match="unknown stream"):
        taken.search("red", by, streams=["sprite"])
    with pytest.raises(DataError, match="3 numbers for a text and 5 for centroids"):
        list(taken.search("red", replace(by, picture=lambda crops: torch.ones(len(crops), 5), name="wide")))
