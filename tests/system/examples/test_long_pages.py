"""Pages that take long: the script of the first one, and the table that the marks of all tests write."""

import subprocess
import sys
from pathlib import Path

import pytest

import brought_page
from test_pages import START, check


@pytest.mark.timeout(300)
def test_the_script_of_the_first_page_runs(tmp_path: Path) -> None:
    check(START, tmp_path)


def test_the_page_of_inputs_has_the_rows_of_the_tests() -> None:
    asked = subprocess.run([sys.executable, brought_page.__file__, "--check"], capture_output=True, text=True)
    assert not asked.returncode, asked.stderr
