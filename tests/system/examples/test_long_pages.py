"""Pages that take long, and the table that the marks of all tests write."""

import subprocess
import sys
from pathlib import Path

import pytest

import brought_page
from test_pages import LONG, check, named


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", LONG, ids=named)
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    check(page, tmp_path)


def test_the_page_of_inputs_has_the_rows_of_the_tests() -> None:
    asked = subprocess.run([sys.executable, brought_page.__file__, "--check"], capture_output=True, text=True)
    assert not asked.returncode, asked.stderr
