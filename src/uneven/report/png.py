"""Pictures of a page as PNG files, drawn by the browser that would show them.

A browser and not a second library that draws: Plotly draws nowhere else, and a picture looks as it does in the page.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from uneven.errors import JournalError, access
from uneven.report.draw import Figure
from uneven.report.page import as_json
from uneven.report.plotly_code import beside, write_beside

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
WIDTH_PX, SCALE = 1100, 2
_WITHIN_S = 120.0

_EXPORT = """
(async () => {
  for (const one of JSON.parse(document.getElementById("figures").textContent)) {
    const size = {width: WIDTH, height: one.layout.height};
    const box = document.createElement("div");
    document.body.append(box);
    await Plotly.newPlot(box, one.data, {...one.layout, ...size});
    const picture = document.createElement("p");
    picture.textContent = await Plotly.toImage(box, {format: "png", scale: SCALE, ...size});
    box.remove();
    document.body.append(picture);
  }
})();
"""


def browser() -> str:
    """A browser of Chromium's family.

    Raises:
        JournalError: there is none.
    """
    for name in BROWSERS:
        if found := shutil.which(name):
            return found
    raise JournalError(
        f"PNG pictures are drawn by a browser, and none of {', '.join(BROWSERS)} is installed: install chromium, or "
        f"leave --png out and open the report"
    )


def write(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Write each picture as a PNG, 2,200 pixels wide.

    Args:
        figures: title → picture.
        folder: where they go, named after their titles.

    Returns:
        The files, in the order of the figures.

    Raises:
        JournalError: there is no browser, it has not drawn them, or the folder cannot be written.
    """
    program = browser()
    names = [name_of(title) for title in figures]
    with access(f"write to {folder} (another folder can be named with --png)", JournalError):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="uneven-png-") as place:
            pictures = _drawn(program, list(figures.values()), Path(place))
        if len(pictures) != len(names):
            raise JournalError(f"{program} has drawn {len(pictures)} of {len(names)} pictures: open the report instead")
        paths = [folder / f"{name}.png" for name in names]
        for path, data in zip(paths, pictures, strict=True):
            path.write_bytes(data)
    return paths


def name_of(title: str) -> str:
    """``"Where each worker's time goes"`` → ``"where-each-workers-time-goes"``."""
    plain = re.sub(r"[^\w]+", "-", title.replace("'", "").lower()).strip("-")
    return plain[:80] or "picture"


def _drawn(program: str, figures: list[Figure], place: Path) -> list[bytes]:
    write_beside(place)
    code = beside().partition("\n")[0]
    export = _EXPORT.replace("WIDTH", str(WIDTH_PX)).replace("SCALE", str(SCALE))
    page = place / "pictures.html"
    page.write_text(
        '<!doctype html><meta charset="utf-8"><body>'
        f'<script type="application/json" id="figures">[{",".join(map(as_json, figures))}]</script>'
        f"{code}<script>{export}</script></body>",
        encoding="utf-8",
    )
    command = [program, "--headless", "--disable-gpu", f"--user-data-dir={place / 'profile'}",
               "--virtual-time-budget=100000", "--dump-dom", page.as_uri()]  # fmt: skip
    if os.geteuid() == 0:
        command.insert(1, "--no-sandbox")  # it refuses to run as root otherwise
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_WITHIN_S)
    except subprocess.TimeoutExpired:
        raise JournalError(f"{program} has not drawn the pictures within {_WITHIN_S:g} s") from None
    return [base64.b64decode(text) for text in re.findall(r"<p>data:image/png;base64,([\w+/=]+)</p>", done.stdout)]
