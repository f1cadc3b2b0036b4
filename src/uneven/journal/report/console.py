"""The terminal output of this package; text from journals and descriptions cannot send control sequences."""

from collections.abc import Iterable
from typing import Any

from rich import console as rich_console
from rich.segment import Segment

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
