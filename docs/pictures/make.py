"""Makes the pictures of the pages again, from what the commands of the pages write.

    python docs/pictures/make.py [--runs DIR] [NAME …]      all of them without a name

Chromium takes them (Debian's package chromium; CHROMIUM names another one), and Pillow makes them small. Nothing else
here needs either. ``start`` and ``read-a-run`` show one demo and ``emulate`` a run of half a minute: run these
on two cores without other work; ``emulate`` needs root. With --runs the run directories are kept, and those that are
there already are shown without another run.

Each picture holds the names that it prints (titles, notes, axes, legends, rows of a table; see :func:`names`).
``tests/unit/journal/report/test_docs_pictures.py`` compares them with those of the code: no picture goes stale
unnoticed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

PICTURES = Path(__file__).parent
DOCS = PICTURES.parent
TRAINED = ("220", "256", "digits")
"""Iterations, global batch and data set of the emulated training."""
WIDTH = 900
"""Of a picture in the page's own pixels, about as wide as a page of text is shown."""
SCALE = 1.5
"""Pixels of the file for each of them, for screens that are finer."""
COLOURS = 256
"""Of a picture, so that it stays small."""
COLUMNS = 94
"""Of the terminal."""

STYLE = f"""
html {{ background: #fff; }}
body {{ font: 15px/1.45 sans-serif; color: #222; background: #fff; margin: 0; }}
main {{ width: {WIDTH - 16}px; max-width: none; margin: 0; padding: 0 8px; }}
main > section {{ border: 0; margin: 0; padding: 6px 0 0; }}
p.note {{ max-width: none; color: #444; }}
pre {{ font: 15px/1.25 "DejaVu Sans Mono", monospace; margin: 0; padding: 14px; color: #222; }}
"""
MEASURE = """
<script>document.title = "height " + Math.ceil(document.querySelector("main").getBoundingClientRect().height);</script>
"""


def uneven(*words: str, columns: int | None = None, cwd: Path | None = None) -> str:
    """Run a command of the pages; what it writes, with its colours if there are ``columns``."""
    env = dict(os.environ)
    if columns is not None:
        env |= {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": str(columns)}
    command = [sys.executable, "-m", "uneven", *words]
    return subprocess.run(command, cwd=cwd, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout


def recorded(runs: Path, name: str, *words: str, target: tuple[str, ...] = ()) -> Path:
    """The run directory of a command, which is run if it is not there yet."""
    where = runs / name
    if not where.is_dir():
        uneven(*words, "--run-dir", str(where), *target)
    return where


def block(page: str, language: str) -> str:
    """The first block of a language in a page, so that a picture shows what stands there."""
    found = re.search(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    assert found is not None, f"{page} has no block of {language}"
    return found[1]


def described(runs: Path, page: str) -> str:
    """The cluster of a page, as a file."""
    path = runs / f"{Path(page).stem}.toml"
    path.write_text(block(page, "toml"))
    return str(path)


def report(run: Path) -> Path:
    """Its HTML report."""
    uneven("report", str(run))
    return run / "report.html"


def parts(page: Path, *titles: str) -> str:
    """A report without its head and foot and with these sections alone."""
    html = page.read_text()
    sections = dict(re.findall(r"(?s)<section><h2>(.*?)</h2>(.*?)</section>", html))
    kept = "".join(f"<section><h2>{title}</h2>{sections[title]}</section>" for title in titles)
    head, tail = html.partition("<main>")[0], html.partition("</main>")[2]
    head = head.replace("</head>", f"<style>{STYLE}</style></head>")
    return f"{head}<main>{kept}</main>{tail}"


def terminal(said: str) -> str:
    """What a command wrote to a terminal of so many columns, as a page."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), color_system="truecolor")
    console.print(Text.from_ansi(said.rstrip()), soft_wrap=True)
    shown = console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
    return (
        f'<!doctype html><html><head><meta charset="utf-8"><style>{STYLE}</style></head>'
        f"<body><main>{shown}</main></body></html>"
    )


def names(html: str) -> dict[str, list[str]]:
    """Find the names that a page prints: section → its note, axes and legend; of a terminal's table, its rows.

    Figures become N, and the names of runs and machines are left out: they are those of one run, not of the code.
    """
    terminal_text = re.search(r"(?s)<pre>(.*)</pre>", html)
    if terminal_text is not None:
        plain = unescape(re.sub("<.*?>", "", terminal_text[1]))
        rows = re.findall(r"(?m)^ *\d+ +(\S+)(?: \*)? +(\S+) .* (yes|not yet) *$", plain)
        return {"rows": sorted(map(" ".join, rows))}
    run = re.search(r"<title>Run (.*?)</title>", html)
    found = {}
    for title, section in re.findall(r"(?s)<section>(?:<h2>(.*?)</h2>)?(.*?)</section>", html):
        notes = re.findall(r'(?s)<p class="note">(.*?)</p>', section)
        figures = re.findall(r'(?s)<script type="application/json">(.*?)</script>', section)
        printed = {unescape(note) for note in notes}.union(*(_labels(json.loads(one)) for one in figures))
        if run is not None:
            printed = {re.sub(rf"\b{re.escape(run[1])}$", "RUN", one) for one in printed}
        printed = {re.sub(r"\d[\d,.]*", "N", one.partition(" · ")[0]) for one in printed if one}
        found[re.sub(r"\d[\d,.]*", "N", unescape(title))] = sorted(printed)
    return found


def _labels(figure: Any) -> Iterator[str]:
    """The titles, legend entries and notes of a chart."""
    if isinstance(figure, dict):
        for key, value in figure.items():
            if isinstance(value, str):
                yield from [value] if key in ("name", "text", "title") else []
            elif key != "template":
                yield from _labels(value)
    elif isinstance(figure, list):
        for value in figure:
            yield from _labels(value)


def embedded(picture: Path) -> dict[str, list[str]]:
    """Read the names that a picture holds."""
    data, at = picture.read_bytes(), 8
    while at < len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        key, _, text = data[at + 8 : at + 8 + size].partition(b"\0")
        if (kind, key) == (b"tEXt", b"names"):
            found: dict[str, list[str]] = json.loads(text)
            return found
        at += 12 + size
    raise SystemExit(f"{picture} holds no names: take it with docs/pictures/make.py")


def start(runs: Path) -> str:
    (page,) = _demo(runs).glob("*-demo.html")
    shown = parts(page, "Where the time of a step goes")
    return re.sub(r'(?s)<h2>.*?</h2><p class="note">.*?</p>', "", shown)  # the README says it in its own words


def read_a_run(runs: Path) -> str:
    (run,) = _demo(runs).glob("*-balanced")
    return parts(report(run), "Where each worker&#x27;s time goes", "Share of the global batch")


def _demo(runs: Path) -> Path:
    where = runs / "demo"
    if not where.is_dir():
        where.mkdir()
        uneven("demo", cwd=where)  # it writes into a folder `runs`
        for one in (where / "runs").iterdir():
            one.rename(where / one.name)
    return where


def describe_a_cluster(runs: Path) -> str:
    spec = described(runs, "how-to/describe-a-cluster.md")
    run = recorded(runs, "described", "simulate", spec, "--iterations", "240")
    return parts(report(run), "Share of the global batch", "Time per iteration")


def emulate(runs: Path) -> str:
    spec = described(runs, "how-to/emulate.md")
    run = recorded(runs, "emulated", "emulate", spec, target=("--", "-m", "uneven_bench.worlds.worker", *TRAINED))
    return parts(report(run), "Cores in use by the worker", "Share of the global batch")


def simulate(runs: Path) -> str:
    run = recorded(runs, "simulated", "simulate", "lb_bsp_cpu32", "--iterations", "300")
    return parts(report(run), "Share of the global batch", "Time per iteration")


def change(runs: Path) -> str:
    run = recorded(runs, "changed", "simulate", "bandwidth_cut", "--balance", "numerical", "--iterations", "400")
    return parts(report(run), "Batch sizes and batch times", "Speed and its prediction")


def plan(runs: Path) -> str:
    played = ("--balance", "even,lb-bsp", "--train", "digits", "--accuracy", "0.9")
    said = uneven("plan", "demo4", *played, columns=COLUMNS)
    return terminal(said.partition("\n\x1b[1mWhy")[0])


def fleet_plan(runs: Path) -> str:
    page = runs / "fleet-plan.html"
    if not page.is_file():
        uneven("bench", "fleet-plan", "--quick", "--report", str(page))
    return parts(page, "one device each, shared (Homogeneous)", "one pipeline per member (Baseline)", "FLEET-G")


def recommendation(runs: Path) -> str:
    page = runs / "recommendation.html"
    if not page.is_file():
        uneven("bench", "recommendation", "--case", "scaling", "--quick", "--report", str(page))
    first = "Examples a second over the number of trainers"
    return parts(page, first, "Examples a second of each trainer, on 0.8, 0.4, 0.2, 0.2 of a core")


MADE: dict[str, Callable[[Path], str]] = {
    "start": start,
    "read-a-run": read_a_run,
    "describe-a-cluster": describe_a_cluster,
    "emulate": emulate,
    "simulate": simulate,
    "change": change,
    "plan": plan,
    "fleet-plan": fleet_plan,
    "recommendation": recommendation,
}


def take(html: str, picture: Path, folder: Path) -> None:
    """Have Chromium show a page and save it as high as it is."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    page = folder / "page.html"
    page.write_text(html.replace("</body>", f"{MEASURE}</body>"))
    dom = chromium("--dump-dom", page)
    found = re.search(r"<title>height (\d+)</title>", dom)
    assert found is not None, "the page did not say how high it is"
    size = (f"--force-device-scale-factor={SCALE}", f"--window-size={WIDTH},{found[1]}")
    chromium(*size, f"--screenshot={folder / 'shot.png'}", page)
    with Image.open(folder / "shot.png") as shot:
        held = PngInfo()
        held.add_text("names", json.dumps(names(html)))
        shot.convert("RGB").quantize(COLOURS).save(picture, optimize=True, pnginfo=held)


def chromium(*words: str | Path) -> str:
    """What it writes; its log is dropped unless it fails."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    program = os.environ.get("CHROMIUM", "chromium")
    command = [program, "--headless", "--disable-gpu", "--hide-scrollbars", *sandbox, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{program} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("names", nargs="*", choices=[*MADE, []])
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="uneven-pictures-") as folder:
        runs = asked.runs or Path(folder)
        runs.mkdir(parents=True, exist_ok=True)
        for name in asked.names or MADE:
            picture = PICTURES / f"{name}.png"
            take(MADE[name](runs.resolve()), picture, Path(folder))
            print(f"{picture}: {picture.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
