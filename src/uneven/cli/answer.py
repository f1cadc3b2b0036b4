"""The option ``--format``, and answers in JSON."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from uneven.cli.options import option
from uneven.policy.core.printable import printable

if TYPE_CHECKING:
    from uneven.fleet import Result
    from uneven.search import SearchResult


class Form(StrEnum):
    """The form of an answer on the standard output."""

    TEXT = "text"
    JSON = "json"


Format = Annotated[Form, option("text|json", "Form of the answer. JSON is alone on the standard output.", "--format")]


def write(answer: Any) -> None:
    """Print an answer as JSON in one line; NaN and infinities become ``null``."""
    print(json.dumps(plain(answer), allow_nan=False), flush=True)


def results(
    result: "Result | SearchResult", rows: dict[str, Any], form: Form, report: Path | None, tools: Sequence[Any] = ()
) -> None:
    """Print the result of a fleet or a search, in JSON with its ``rows``; write its page, and log it to ``tools``."""
    if form is Form.JSON:
        write({"directory": result.directory, "metric": result.metric, "failed": len(result.failed), **rows})
    else:
        print(printable(str(result)))
    if report is not None:
        result.report(report)
    for tool in tools:
        result.track(tool)


def plain(value: Any) -> Any:
    """Return a value as JSON has it: dataclasses and named tuples as objects, paths and enums as texts."""
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, Path):
        return str(value)
    return value.item() if hasattr(value, "item") else value  # a number of NumPy
