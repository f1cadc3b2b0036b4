"""The package's logger, its warnings, and names that go away."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

import uneven
from uneven.errors import ConfigError
from uneven.runtime.deprecated import renamed

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


@renamed("9.0", size="batch")
def made(*, batch: int) -> int:
    return batch


def test_an_old_name_works_and_warns() -> None:
    assert made(batch=3) == 3
    with pytest.warns(
        uneven.UnevenDeprecationWarning, match=r"made: size is now batch; version 9\.0 removes it"
    ) as seen:
        assert made(size=4) == 4
    assert seen[0].filename == __file__
    with pytest.raises(ConfigError, match="size is the old name of batch"):
        made(size=4, batch=3)
