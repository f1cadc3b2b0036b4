"""English: each pattern of ``english.toml`` may occur in an area at most as often as its ceiling there says.

``python tests/test_english.py --write`` lowers the ceilings to the present counts. It never raises one.
"""

import ast
import inspect
import math
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
import typer

from test_architecture import BENCHES, ROOT, SOURCE, Module, modules
from test_constructors import packed_fields
from uneven.cli import application
from uneven.cli.commands import COMMANDS

FILE = Path(__file__).with_name("english.toml")
RULES = tomllib.loads(FILE.read_text())
PATTERNS: dict[str, dict[str, Any]] = RULES["pattern"]
CODE = re.compile(
    r"^ *(```|~~~).*?^ *\1|(`+)(?:(?!\n\s*\n).)+?\2|(?<=\]\()[^)\s]+|<!--.*?-->|https?://\S+", re.DOTALL | re.MULTILINE
)
COMMENT = re.compile(r"(?:^\s*|  )(#):?(?: |$)(.*)")
LITERAL_BLOCK = re.compile(r"(?<=::\n)(\s*\n|(?P<indent> +)\S.*\n(?:(?P=indent).*(?:\n|\Z)|\s*\n)*)+")
WORDS = re.compile(r"(?<!\S)[a-zA-Z']{2,}(?!\S)")
ZERO = ("first", "help", "texts")
FIRST = [ROOT / "docs" / name for name in ("getting-started", "compare", "tutorials")]
"""The folders of pages that a visitor reads first."""
Node = ast.Expr | ast.Raise | ast.Constant | ast.JoinedStr


class Prose(NamedTuple):
    """Text without code, which starts on a line of a file."""

    place: str
    line: int
    text: str


def prose(text: str) -> str:
    """The text with blanks for code, each line where it was."""
    for code in (LITERAL_BLOCK, CODE):
        text = code.sub(lambda found: "_" + "\n" * found[0].count("\n"), text)
    return text


def pages(paths: list[Path]) -> Iterator[Prose]:
    for path in paths:
        yield Prose(str(path.relative_to(ROOT)), 1, prose(path.read_text()))


@cache
def sources(*folders: Path) -> tuple[tuple[str, Module], ...]:
    return tuple((str(one.path.relative_to(ROOT)), one) for one in modules(*folders))


@cache
def nodes(module: Module) -> tuple[Node, ...]:
    return tuple(node for node in module.nodes if isinstance(node, Node))


def rows(node: ast.expr | ast.stmt) -> range:
    """The lines of a text, without its last one, which may end with a comment."""
    return range(node.lineno, node.end_lineno or 0)


@cache
def docstrings(module: Module) -> tuple[tuple[int, str], ...]:
    """The docstrings of a file, also those of its constants and fields."""
    return tuple(
        (node.lineno, inspect.cleandoc(node.value.value))
        for node in nodes(module)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    )


@cache
def comments(module: Module) -> tuple[tuple[int, str], ...]:
    """The comments of a file; those on successive lines are one."""
    texts = {line for node in nodes(module) if isinstance(node, ast.Constant | ast.JoinedStr) for line in rows(node)}
    found = [
        (line, comment.start(1), comment[2])
        for line, text in enumerate(module.text.splitlines(), 1)
        if line not in texts and (comment := COMMENT.search(text))
    ]
    together = groupby(enumerate(found), lambda pair: (pair[1][0] - pair[0], pair[1][1]))
    blocks = [[one for _, one in group] for _, group in together]
    return tuple((block[0][0], "\n".join(words for _, _, words in block)) for block in blocks)


def messages(module: Module) -> Iterator[tuple[int, str]]:
    """The texts of the errors that a file raises."""
    for node in nodes(module):
        raised = node.exc if isinstance(node, ast.Raise) else None
        if isinstance(raised, ast.Call) and ast.unparse(raised.func).endswith("Error"):
            yield node.lineno, "\n".join(text for given in raised.args for text in strings(given))


def texts(module: Module) -> Iterator[tuple[int, str]]:
    """The strings of a file with three words or more, such as captions; no docstrings."""
    inner = {id(part) for node in nodes(module) if isinstance(node, ast.JoinedStr) for part in node.values}
    inner |= {id(node.value) for node in nodes(module) if isinstance(node, ast.Expr)}
    for node in nodes(module):
        if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in inner:
            yield from ((node.lineno, text) for text in strings(node) if len(WORDS.findall(text)) >= 3)


def strings(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant):
        yield from [node.value] if isinstance(node.value, str) else []
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "_" for part in node.values)
    else:
        for child in ast.iter_child_nodes(node):
            yield from strings(child)


def helps() -> Iterator[Prose]:
    """The texts of each ``uneven … --help``."""
    top: Any = typer.main.get_command(application([]))
    yield Prose("uneven --help", 1, prose(f"{top.help}\n\n{top.epilog}"))
    for name, command in COMMANDS.items():
        yield Prose("src/uneven/cli/commands.py", 1, command.short)
        if command.where is not None:
            tree: Any = typer.main.get_command(application([name]))
            yield from help_of(tree.commands[name], f"uneven {name}")


def help_of(command: click.Command, name: str) -> Iterator[Prose]:
    call, place, line = command.callback, name, 1
    if call is not None:
        call = inspect.unwrap(call)
        place, line = f"{Path(call.__code__.co_filename).relative_to(ROOT)}: {name}", call.__code__.co_firstlineno
    text = re.sub(r"^(  .*[^.\s])$", r"\1.", command.help or "", flags=re.MULTILINE)  # each example is a sentence
    yield Prose(place, line, prose(text))
    for one in command.params:
        yield Prose(f"{place} {one.opts[0]}", line, prose(getattr(one, "help", None) or ""))
    for word, below in getattr(command, "commands", {}).items():
        yield from help_of(below, f"{name} {word}")


@cache
def area(name: str) -> tuple[Prose, ...]:
    docs = ROOT / "docs"
    first = [docs / "index.md", docs / "start.md", *(path for folder in FIRST for path in sorted(folder.glob("*.md")))]
    if name == "first":
        return tuple(pages([ROOT / "README.md", ROOT / "CHANGELOG.md", *first]))
    if name == "help":
        return tuple(helps())
    if name == "docs":
        return tuple(pages([path for path in sorted(docs.rglob("*.md")) if path not in first]))
    kinds = {"source": (docstrings, comments), "errors": (messages,), "texts": (texts,)}[name]
    return tuple(
        Prose(place, line, prose(text))
        for place, module in sources(SOURCE)
        for kind in kinds
        for line, text in kind(module)
    )


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern of that name; a blank in it is also a line break of the text."""
    return re.compile(PATTERNS[pattern]["regex"].replace(" ", r"\s+"), re.IGNORECASE)


@cache
def hits(pattern: str, where: str) -> tuple[str, ...]:
    return tuple(
        f"{one.place}:{one.line + one.text.count(chr(10), 0, found.start())}: {' '.join(found[0].split())[:60]}"
        for one in area(where)
        for found in compiled(pattern).finditer(one.text)
    )


def ceiling(pattern: str, where: str) -> float:
    return PATTERNS[pattern].get(where, 0 if where in ZERO else math.inf)


def fragments(texts: list[str]) -> float:
    """The share of the texts that begin with a word that begins no sentence."""
    words = re.compile(rf"({'|'.join(RULES['share']['fragment_words'])})\b")
    return sum(bool(words.match(text)) for text in texts) / len(texts)


COUNTS: dict[str, tuple[Callable[[Module], int], tuple[Path, ...]]] = {
    "fmt_skip": (lambda module: module.text.count("# fmt: skip"), (SOURCE,)),
    "packed_assignments": (lambda module: len(packed_fields(module, 1)), (SOURCE,)),
    "summaries_that_begin_with_of": (lambda module: len(re.findall(r'"""Of\b', module.text)), (SOURCE, BENCHES)),
}


def counted(name: str) -> dict[str, int]:
    """The count of each file that has any."""
    count, folders = COUNTS[name]
    return {place: found for place, module in sources(*folders) if (found := count(module))}


@pytest.mark.parametrize("where", ["first", "help", "docs", "source", "errors", "texts"])
def test_no_pattern_is_more_frequent(where: str) -> None:
    over = [
        f"{rule['rule']} {rule['regex']!r}: {len(found)}, at most {ceiling(name, where)}; say: {rule['say']}\n  "
        + "\n  ".join(found)
        for name, rule in PATTERNS.items()
        if len(found := hits(name, where)) > ceiling(name, where)
    ]
    assert not over, f"{where}: see tests/english.toml\n" + "\n".join(over)


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_finds_the_bad_sentence_only(name: str) -> None:
    assert compiled(name).search(prose(PATTERNS[name]["bad"]))
    assert not compiled(name).search(prose(PATTERNS[name]["good"]))


def test_code_is_no_prose() -> None:
    page = "One `nobody` or ``nobody``.\n```sh\nnobody\n```\nTwo [x](nobody.md).\n\n~~~\nnobody\n~~~\nThree"
    assert prose(page).split() == ["One", "_", "or", "_.", "_", "Two", "[x](_).", "_", "Three"]
    assert prose(page).count("\n") == page.count("\n")
    assert "nobody" not in prose("So::\n\n    nobody\n\n      nobody\n\nThat.")


def test_texts_of_a_file_are_found() -> None:
    text = '"""One.\n\n    # Two.\n    """\nx = 1\n"""Three."""\nif x:  # four\n    # five\n    # six\n'
    code = '    raise ConfigError(f"seven {x}: " "eight")\n    y = f"nine {x} and ten", "eleven and"\n'
    module = Module("bad", text + code)
    assert [*docstrings(module)] == [(1, "One.\n\n# Two."), (6, "Three.")]
    assert [*comments(module)] == [(7, "four"), (8, "five\nsix")]
    assert [*messages(module)] == [(10, "seven _: eight")]
    assert [*texts(module)] == [(11, "nine _ and ten")]


def test_few_summaries_are_fragments() -> None:
    texts = [text for _, module in sources(SOURCE) for _, text in docstrings(module)]
    assert fragments(texts) <= RULES["share"]["fragments"], "begin a docstring with a verb or an article"


def test_a_fragment_is_seen() -> None:
    assert fragments(["What it does.", "Do it.", "Iterate.", "Whatever."]) == 0.25


def test_enough_lines_have_a_comment() -> None:
    found = [text.count("\n") + 1 for _, module in sources(SOURCE) for _, text in comments(module)]
    lines = sum(module.text.count("\n") for _, module in sources(SOURCE))
    assert sum(found) / lines >= RULES["share"]["comments"], "say why at the hard lines"


@pytest.mark.parametrize("name", RULES["count"])
def test_counts_of_code(name: str) -> None:
    found = counted(name)
    assert sum(found.values()) <= RULES["count"][name], found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("fmt_skip", "x = {}  # fmt: skip"),
        ("packed_assignments", "class It:\n    def __init__(self, x, y):\n        self.x, self.y = x, y"),
        ("summaries_that_begin_with_of", 'def it():\n    """Of one worker."""'),
    ],
)
def test_a_count_sees_a_bad_example(name: str, text: str) -> None:
    assert [COUNTS[name][0](Module("one", one)) for one in (text, "self.x, self.y = pair  # ordered")] == [1, 0]


def lowered(text: str) -> str:
    """The file with each ceiling that is above the present count lowered to it."""
    table = ""
    lines = text.splitlines(keepends=True)
    for at, line in enumerate(lines):
        table = line.strip().strip("[]") if line.startswith("[") else table
        if found := re.match(r"(\w+) = (\d+)$", line):
            pattern = table.removeprefix("pattern.")
            now = sum(counted(found[1]).values()) if table == "count" else len(hits(pattern, found[1]))
            lines[at] = f"{found[1]} = {min(int(found[2]), now)}\n"
    return "".join(lines)


def test_ceilings_only_fall() -> None:
    name = next(name for name in PATTERNS if len(hits(name, "source")) > 0)
    present = len(hits(name, "source"))
    high, low = (f"[pattern.{name}]\nsource = {count}\n" for count in (present + 7, present - 1))
    assert lowered(high) == f"[pattern.{name}]\nsource = {present}\n"
    assert lowered(low) == low


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/test_english.py --write")
    FILE.write_text(lowered(FILE.read_text()))
