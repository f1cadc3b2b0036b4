"""Compiles ``uneven/graph/native.cpp`` into the package where there is a compiler; without one all works, slower.

The file has a plain C interface and needs only C and C++'s libraries, so one serves all versions of Python and torch.
OpenMP's functions are left open: they are found in the library that torch has loaded, and share its threads.

``UNEVEN_NATIVE=0`` leaves it out. ``CXX`` names a compiler, which may compile for another kind of machine.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGS = ["-O3", "-std=c++17", "-fPIC", "-ffp-contract=off", "-fvisibility=default", "-c"]


def compiled(source: Path, to: Path) -> str:
    """Compile ``to`` and return the kind of machine that it is for; empty, with the reason printed, if that fails."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if os.environ.get("UNEVEN_NATIVE") == "0" or compiler is None or not sys.platform.startswith("linux"):
        return ""
    part = to.with_suffix(".o")
    digest = f'-DUNEVEN_SOURCE="{hashlib.sha256(source.read_bytes()).hexdigest()}"'
    link = [compiler, "-shared", str(part), "-o", str(to), "-Wl,-s"]
    for openmp in (["-fopenmp"], []):
        compile_it = [compiler, *FLAGS, digest, *openmp, str(source), "-o", str(part)]
        done = subprocess.run(compile_it, capture_output=True, text=True)
        if done.returncode == 0:
            done = subprocess.run(link, capture_output=True, text=True)
            part.unlink()
        if done.returncode == 0:
            triple = subprocess.run([compiler, "-dumpmachine"], capture_output=True, text=True, check=True).stdout
            return triple.partition("-")[0]
    print(f"uneven: {source.name} is left out: {done.stderr.strip()}", file=sys.stderr)
    return ""


class CompileHook(BuildHookInterface):
    """Part of every build, editable ones included."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say that the wheel is for this kind of machine."""
        if self.target_name != "wheel":
            return
        package = Path(self.root) / "src" / "uneven" / "graph"
        library = package / "_native.so"
        library.unlink(missing_ok=True)
        if machine := compiled(package / "native.cpp", library):
            build_data["artifacts"].append("src/uneven/graph/_native.so")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-linux_{machine}"
