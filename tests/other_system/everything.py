"""Imports every module of uneven, and shows the help of every command, in this process; prints what failed."""

import contextlib
import importlib
import io
import pkgutil

import uneven
from uneven.cli import main
from uneven.cli.commands import COMMANDS
from uneven.runtime.system import NAME

wrong = {}
for found in pkgutil.walk_packages(uneven.__path__, "uneven."):
    if found.name.endswith(("__main__", "_native")):  # programs, and a library
        continue
    try:
        importlib.import_module(found.name)
    except ModuleNotFoundError as error:
        if not error.name or error.name.startswith("uneven") or " on " in str(error):  # else a package is not installed
            wrong[found.name] = error
    except Exception as error:  # noqa: BLE001 — any error is shown
        wrong[found.name] = error
for name in uneven.__all__:
    getattr(uneven, name)
for words in ([], *([name] for name, command in COMMANDS.items() if command.package is None)):
    try:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            main([*words, "--help"])
    except SystemExit as end:
        if end.code or "Usage: uneven" not in said.getvalue():
            wrong[f"uneven {' '.join(words)} --help"] = end.code
print(f"{NAME}: {wrong or 'all'}")
