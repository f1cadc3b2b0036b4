"""The picture of a plan: every stretch on every device, what computed, and names where there is room."""

from uneven.journal.report.pure.figures import Span, gantt

SPANS = [
    Span("a", (0, 1, 2), 0.0, 40.0, 0.5),
    Span("b", (3,), 0.0, 40.0, 1.0),
    Span("b", (0, 3), 40.0, 100.0, 0.25),
    Span("rather long a name", (1,), 40.0, 41.0, 1.0),
]


def test_every_stretch_is_on_each_of_its_devices() -> None:
    figure = gantt(SPANS, devices=4, end_s=100.0)
    pale = {trace["name"]: trace for trace in figure["data"][::2]}
    b = pale["b"]
    assert list(zip(b["y"], b["base"], b["x"], strict=True)) == [(3, 0, 40), (0, 40, 60), (3, 40, 60)]
    assert b["hovertext"][1] == "b on 2: computes 25% of the time"
    assert figure["layout"]["yaxis"]["range"] == [3.5, -0.5]


def test_the_dark_part_is_the_share_that_computed() -> None:
    figure = gantt(SPANS, devices=4, end_s=100.0)
    for whole, dark in zip(figure["data"][::2], figure["data"][1::2], strict=True):
        shares = [one.computed for one in SPANS if one.name == whole["name"] for _ in one.devices]
        assert [part / full for part, full in zip(dark["width"], whole["width"], strict=True)] == shares
        assert dark["marker"] == whole["marker"]


def test_names_stand_once_in_each_block_with_room() -> None:
    labels = gantt(SPANS, devices=4, end_s=100.0)["layout"]["annotations"]
    assert [(one["text"], one["x"], one["y"]) for one in labels] == [
        ("a", 20, 1),
        ("b", 20, 3),
        ("b", 70, 0),
        ("b", 70, 3),
    ]


def test_long_times_are_in_thousands() -> None:
    figure = gantt([Span("a", (0,), 0.0, 9000.0, 1.0)], devices=40, end_s=9000.0)
    assert (figure["data"][0]["x"], figure["layout"]["xaxis"]["range"]) == ([9.0], [0, 9.0])
    assert figure["layout"]["xaxis"]["title"]["text"] == "1000 s"
    assert "dtick" not in figure["layout"]["yaxis"]
