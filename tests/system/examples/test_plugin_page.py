"""docs/how-to/write-a-plug-in.md: its file is tested there; here its package is installed and played by name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from distributions import install

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "write-a-plug-in.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_the_package_of_the_page_is_found_by_name(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    project = tomllib.loads(text)["project"]
    code, entries = "\n".join(blocks("python")), project["entry-points"]
    install(tmp_path, project["name"], project["version"], code=code, entries=entries)
    (command,) = re.findall(r"^uneven (simulate .*)$", PAGE, flags=re.MULTILINE)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))}
    words = [sys.executable, "-m", "uneven", *command.split(), "--iterations", "20"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert {name for names in entries.values() for name in names} == {"rounds", "halfway", "coarse"}
