"""Writes the tutorials as notebooks, and executes them.

    python docs/notebooks.py [--pictures | --code] [NAME …]      all of them without a name

The pages in ``docs/tutorials`` are the only source. A block of Python becomes a cell, and so does a block of shell
commands; all other text becomes Markdown. Sphinx writes the notebooks next to the pages, for readers to download; git
ignores them. The command executes each one in an empty folder, writes it with its outputs to ``build/notebooks``, and
fails if a cell fails or the last one draws nothing. With --pictures the pages show what the last cells have drawn.
With --code it executes nothing, and writes the code of each page into a folder of ``build/tutorials`` that `make types`
reads.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
PAGES = sorted((DOCS / "tutorials").glob("[0-9]-*.md"))
PICTURES = DOCS / "pictures" / "tutorials"
EXECUTED = DOCS.parent / "build" / "notebooks"
CODE = DOCS.parent / "build" / "tutorials"
CELL_S = 240
"""A cell that takes longer has failed."""
PICTURE_BYTES = 150_000
"""At most, as tests/test_docs.py demands."""

_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$\n?", re.MULTILINE | re.DOTALL)
_FILE = "%%writefile "
_ONLY_ON_THE_SITE = re.compile(r"^(?:!\[|\{download\}).*\n?", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]+\)")


def notebook(page: str) -> dict[str, Any]:
    """Return a page as a notebook, in version 4.4 of Jupyter's format."""
    cells = []
    for place, piece in enumerate(_BLOCK.split(page)):
        # Text, language and code alternate.
        if place % 3 == 0 and (text := _text(piece)):
            cells.append({"cell_type": "markdown", "metadata": {}, "source": text})
        elif place % 3 == 1:
            prefix = "%%sh -e\n" if piece == "sh" else ""
        elif place % 3 == 2:
            code = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
            cells.append(code | {"source": prefix + piece.rstrip("\n")})
    kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 4}


def _text(piece: str) -> str:
    """Return the Markdown of a cell: a notebook draws its own picture, and has no other page that it could link to."""
    return _LINK.sub(r"*\1*", _ONLY_ON_THE_SITE.sub("", piece)).strip()


def write() -> None:
    """Write each notebook next to its page. Sphinx calls it before it reads the pages."""
    for page in PAGES:
        page.with_suffix(".ipynb").write_text(json.dumps(notebook(page.read_text()), indent=1))


def extract(page: Path) -> None:
    """Write the files that a page's cells write, and ``cells.py`` with the code of its other cells."""
    folder = CODE / page.stem
    folder.mkdir(parents=True, exist_ok=True)
    cells = []
    for language, code in _BLOCK.findall(page.read_text()):
        first, _, rest = code.partition("\n")
        if first.startswith(_FILE):
            (folder / first.removeprefix(_FILE)).write_text(rest)
        elif language == "python":
            cells.append(code)
    (folder / "cells.py").write_text("\n".join(cells))


def execute(page: Path) -> Any:
    """Return a page's notebook with its outputs; raise nbclient's CellExecutionError if a cell fails."""
    import nbformat
    from nbclient import NotebookClient

    made = nbformat.from_dict(notebook(page.read_text()))
    nbformat.validate(made)
    with tempfile.TemporaryDirectory(prefix=f"uneven-{page.stem}-") as folder:
        here = {"metadata": {"path": folder}}
        NotebookClient(made, timeout=CELL_S, startup_timeout=CELL_S, resources=here).execute()
    return made


def drawn(made: Any) -> bytes:
    """Return the picture of the last cell as PNG; end with a message if there is none."""
    code = [cell for cell in made.cells if cell.cell_type == "code"]
    found = [one.data["image/png"] for one in code[-1].outputs if "image/png" in one.get("data", {})]
    if not found:
        raise SystemExit("the last cell draws no picture")
    return base64.b64decode(found[-1])


def save(picture: bytes, path: Path) -> None:
    """Save a picture with as many colours as its size allows."""
    from PIL import Image

    path.parent.mkdir(exist_ok=True)
    with Image.open(io.BytesIO(picture)) as image:
        for colours in (256, 64, 32, 16):
            image.convert("RGB").quantize(colours).save(path, optimize=True)
            if path.stat().st_size <= PICTURE_BYTES:
                return
    raise SystemExit(f"{path} has more than {PICTURE_BYTES} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", action="store_true")
    parser.add_argument("--code", action="store_true")
    parser.add_argument("names", nargs="*", choices=[*(page.stem for page in PAGES), []])
    asked = parser.parse_args()
    # Cells start `uneven` and `python`, also if this environment is not active.
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    EXECUTED.mkdir(parents=True, exist_ok=True)
    for page in PAGES:
        if asked.names and page.stem not in asked.names:
            continue
        if asked.code:
            extract(page)
            continue
        began_s = time.monotonic()
        made = execute(page)
        (EXECUTED / f"{page.stem}.ipynb").write_text(json.dumps(made, indent=1))
        picture = drawn(made)
        if asked.pictures:
            save(picture, PICTURES / f"{page.stem}.png")
        print(f"{page.stem}: {time.monotonic() - began_s:.0f} s", flush=True)


if __name__ == "__main__":
    main()
