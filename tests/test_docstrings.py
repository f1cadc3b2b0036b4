"""A docstring is a sentence of its own; one that begins with "Of" leans on a name that its reader may not have seen."""

import re

import pytest

from test_architecture import modules

LEANING = re.compile(r'"""Of ')


def test_no_docstring_begins_with_of() -> None:
    assert [module.name for module in modules() if LEANING.search(module.text)] == []


@pytest.mark.parametrize(("text", "leans"), [('"""Of one worker."""', True), ('"""The speed of one worker."""', False)])
def test_a_leaning_docstring_is_seen(text: str, leans: bool) -> None:
    assert bool(LEANING.search(text)) is leans
