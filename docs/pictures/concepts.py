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
WIDTH, HEIGHT = 640, 500
LEFT, BAR = 16, 452
"""Where the global batch begins, and its width."""
RIGHT = LEFT + BAR + 22
"""Where the column of the balancer begins."""
INK, SOFT = "#222", "#666"


def text(
    x: float, y: float, words: str, size: int = 17, anchor: str = "start", weight: int = 400, ink: str = INK
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
    yield text(LEFT, 32, "Global batch: 512 samples", weight=700)
    total = sum(SHARES)
    ends = list(accumulate(SHARES))
    for rank, (share, end) in enumerate(zip(SHARES, ends, strict=True)):
        x, width = LEFT + BAR * (end - share) / total, BAR * share / total
        yield box(x, 46, width - 3, 40, COLOURS[rank], COLOURS[rank])
        yield text(x + width / 2 - 1.5, 72, str(share), anchor="middle", weight=700, ink="#fff")
        yield arrow((x + width / 2 - 1.5, 88), (LEFT + BAR * (rank + 0.5) / len(SHARES), 126))


def workers() -> Iterator[str]:
    """The workers with their times, and the exchange below them."""
    width = BAR / len(SHARES)
    for rank in range(len(SHARES)):
        x = LEFT + width * rank
        yield box(x + 4, 130, width - 8, 88)
        yield text(x + width / 2, 154, f"Worker {rank}", anchor="middle", weight=700)
        yield text(x + width / 2, 176, "model", 15, "middle", ink=SOFT)
        yield f'<rect x="{x + 16:g}" y="190" width="{width - 32:g}" height="14" rx="2" fill="{COLOURS[rank]}"/>'
        yield arrow((x + width / 2, 220), (x + width / 2, 248))
    yield text(RIGHT - 12, 192, "equal", 15, ink=SOFT)
    yield text(RIGHT - 12, 210, "compute times", 15, ink=SOFT)
    yield box(LEFT + 4, 252, BAR - 8, 66, "#eef3f8")
    yield text(LEFT + BAR / 2, 279, "Policy: which exchange, and who waits", anchor="middle", weight=700)
    yield text(LEFT + BAR / 2, 303, "bsp: the mean of the gradients, in every step", 15, "middle", ink=SOFT)


def around() -> Iterator[str]:
    """The balancer at the right, and the journal below."""
    width = WIDTH - RIGHT - 10
    yield arrow((LEFT + BAR - 2, 285), (RIGHT - 2, 285))
    yield box(RIGHT + 2, 238, width, 94, "#eef3f8")
    for line, (words, weight) in enumerate([("Balancer", 700), ("speeds in,", 400), ("next split out", 400)]):
        size, ink = (17, INK) if weight == 700 else (15, SOFT)
        yield text(RIGHT + 2 + width / 2, 264 + 25 * line, words, size, "middle", weight, ink)
    yield arrow((WIDTH - 24, 236), (WIDTH - 24, 27), (LEFT + 238, 27))
    yield arrow((LEFT + BAR / 2, 320), (LEFT + BAR / 2, 352))
    yield box(LEFT + 4, 356, BAR - 8, 126, "#f6f6f6")
    yield text(LEFT + 20, 384, "Run directory", weight=700)
    yield box(LEFT + 20, 400, 232, 64)
    yield text(LEFT + 136, 427, "Journal", anchor="middle", weight=700)
    yield text(LEFT + 136, 450, "steps, shares, waits, events", 15, "middle", ink=SOFT)
    yield arrow((LEFT + 254, 432), (LEFT + 300, 432))
    yield text(LEFT + 308, 427, "uneven watch")
    yield text(LEFT + 308, 450, "uneven report")


def drawn() -> str:
    """Return the picture."""
    return "\n".join(lines()) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(drawn())
