"""The terminal as everything here writes to it: names from journals and descriptions cannot command it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import console as rich_console
from rich.segment import Segment

from uneven.core.text import printable


class Console(rich_console.Console):
    """Rich's, but text is only text: no markup, no emoji codes, no escape sequences in what is printed.

    Styles are given as ``rich.text.Text``; what Rich itself makes of them and of tables still reaches the terminal.

    Args:
        options: of Rich's ``Console``.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, **options})

    def render(
        self, renderable: rich_console.RenderableType, options: rich_console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The pieces of which everything printed is made, one inside of another."""
        for segment in super().render(renderable, options):
            if segment.control or (text := printable(segment.text)) == segment.text:
                yield segment
            else:
                yield Segment(text, segment.style)
