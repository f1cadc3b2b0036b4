"""A plug-in of pytest that appends the outcome of each test to a file as soon as it is there: a line of JSON each."""

import json
import os
from typing import Any

VARIABLE = "UNEVEN_GPU_OUTCOMES"  # the file


def pytest_runtest_logreport(report: Any) -> None:
    """Append ``{"test", "outcome", "why", "seconds"}``: of the call, and of an error or a skip around it."""
    if report.when != "call" and report.outcome == "passed":
        return
    why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr or "").strip()
    outcome = {"test": report.nodeid, "outcome": report.outcome, "why": why[-2000:], "seconds": report.duration}
    with open(os.environ[VARIABLE], "a", encoding="utf-8") as file:
        file.write(json.dumps(outcome) + "\n")
