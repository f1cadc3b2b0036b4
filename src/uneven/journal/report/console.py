"""The terminal output of this package; text from journals and descriptions cannot send control sequences."""

from collections.abc import Collection, Iterable
from typing import Any

from rich import console as rich_console
from rich.box import SIMPLE_HEAD
from rich.segment import Segment
from rich.table import Table

from uneven.policy.core.printable import printable


class Console(rich_console.Console):
    """Rich's console without markup, emoji codes and escape sequences in the printed text.

    Styles are passed as ``rich.text.Text``; Rich's control segments still reach the terminal. Options as for Rich's
    ``Console``.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, **options})

    def render(
        self, renderable: rich_console.RenderableType, options: rich_console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        # Everything that is printed passes through here, tables and nested renderables included.
        for segment in super().render(renderable, options):
            if segment.control or (text := printable(segment.text)) == segment.text:
                yield segment
            else:
                yield Segment(text, segment.style)


def columns(
    headings: Iterable[str], rows: Iterable[Iterable[str]], *, left: Collection[int] = (0,), **look: Any
) -> Table:
    """Return a table of texts. The columns ``left`` are aligned to the left, the others to the right; ``look`` are
    options of Rich's ``Table``."""
    table = Table(box=SIMPLE_HEAD, **look)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place in left else "right")
    for row in rows:
        table.add_row(*row)
    return table
