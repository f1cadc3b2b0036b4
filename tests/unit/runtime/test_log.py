"""The package's logger and its warnings."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

import uneven

SAYS = "import logging, uneven; logging.getLogger('uneven.run').info('here')"


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("", "uneven: here\n"),
        ("import logging; logging.basicConfig(format='%(name)s %(message)s')", "uneven.run here\n"),
        ("import logging; logging.getLogger('uneven').setLevel('WARNING')", ""),
    ],
)
def test_messages_appear_until_logging_is_configured(before: str, said: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"{before}\n{SAYS}"], capture_output=True, text=True, check=True)
    assert done.stderr == said


def test_warnings_have_a_class() -> None:
    assert issubclass(uneven.UnevenDeprecationWarning, uneven.UnevenWarning)
    assert logging.getLogger("uneven").level == logging.INFO
