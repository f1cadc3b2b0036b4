"""Draws ``concepts.svg``, the picture of docs/getting-started/concepts.md: ``python docs/pictures/concepts.py``.

The file has its own white ground, so it reads on light and on dark pages. ``tests/test_site.py`` compares it with
this script.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

PICTURE = Path(__file__).with_name("concepts.svg")
SHARES = (248, 156, 75, 33)
"""Samples of each worker, from the quickstart's run."""
COLOURS = ("#0173b2", "#de8f05", "#029e73", "#cc78bc")
WIDTH, HEIGHT = 900, 452
LEFT, BAR = 40, 600
"""Where the global batch begins, and its width."""
INK, SOFT = "#222", "#666"


def text(
    x: float, y: float, words: str, size: int = 15, anchor: str = "start", weight: int = 400, ink: str = INK
) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" '
        f'fill="{ink}">{words}</text>'
    )


def box(x: float, y: float, width: float, height: float, fill: str = "#fff", edge: str = SOFT) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" fill="{fill}" stroke="{edge}" '
        'stroke-width="1.5"/>'
    )


def arrow(*points: tuple[float, float]) -> str:
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{SOFT}" stroke-width="2" marker-end="url(#tip)"/>'


def lines() -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="Helvetica, Arial, DejaVu Sans, sans-serif">'
    )
    yield (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{SOFT}"/></marker></defs>'
    )
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#fff"/>'
    yield from batch()
    yield from workers()
    yield from around()
    yield "</svg>"


def batch() -> Iterator[str]:
    """The global batch, divided into shares."""
    yield text(LEFT, 34, "Global batch: 512 samples", weight=700)
    total = sum(SHARES)
    ends = list(accumulate(SHARES))
    for rank, (share, end) in enumerate(zip(SHARES, ends, strict=True)):
        x, width = LEFT + BAR * (end - share) / total, BAR * share / total
        yield box(x, 46, width - 3, 38, COLOURS[rank], COLOURS[rank])
        yield text(x + width / 2 - 1.5, 71, str(share), anchor="middle", weight=700, ink="#fff")
        middle = LEFT + BAR * (rank + 0.5) / len(SHARES)
        yield arrow((x + width / 2 - 1.5, 86), (middle, 122))
    yield text(LEFT + BAR + 14, 71, "split into shares", ink=SOFT)


def workers() -> Iterator[str]:
    """The workers with their times, and the exchange below them."""
    width = BAR / len(SHARES)
    for rank in range(len(SHARES)):
        x = LEFT + width * rank
        yield box(x + 6, 126, width - 12, 84)
        yield text(x + width / 2, 150, f"Worker {rank}", anchor="middle", weight=700)
        yield text(x + width / 2, 172, "model · optimizer", 13, "middle", ink=SOFT)
        yield f'<rect x="{x + 22:g}" y="184" width="{width - 44:g}" height="12" rx="2" fill="{COLOURS[rank]}"/>'
        yield arrow((x + width / 2, 212), (x + width / 2, 240))
    yield text(LEFT + BAR + 14, 195, "equal compute times", ink=SOFT)
    yield box(LEFT + 6, 244, BAR - 12, 46, "#eef3f8")
    yield text(LEFT + BAR / 2, 273, "Policy: which exchange, and who waits (bsp: mean of gradients)", anchor="middle")


def around() -> Iterator[str]:
    """The balancer at the right, and the journal below."""
    right = LEFT + BAR + 60
    yield box(right, 236, 190, 62, "#eef3f8")
    yield text(right + 95, 262, "Balancer", anchor="middle", weight=700)
    yield text(right + 95, 284, "decides the next split", 13, "middle", ink=SOFT)
    yield arrow((LEFT + BAR - 4, 267), (right - 4, 267))
    yield text(LEFT + BAR + 26, 258, "speeds", 13, "middle", ink=SOFT)
    yield arrow((right + 160, 234), (right + 160, 29), (LEFT + 215, 29))
    yield arrow((LEFT + BAR / 2, 292), (LEFT + BAR / 2, 330))
    yield box(LEFT + 6, 334, BAR - 12, 104, "#f6f6f6")
    yield text(LEFT + 22, 358, "Run directory", weight=700)
    yield box(LEFT + 22, 372, 250, 50)
    yield text(LEFT + 147, 394, "Journal", anchor="middle", weight=700)
    yield text(LEFT + 147, 413, "steps, shares, waits, events", 13, "middle", ink=SOFT)
    yield arrow((LEFT + 274, 397), (LEFT + 340, 397))
    yield text(LEFT + 350, 392, "uneven watch")
    yield text(LEFT + 350, 413, "uneven report")


def drawn() -> str:
    """Return the picture."""
    return "\n".join(lines()) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(drawn())
