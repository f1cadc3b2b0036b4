"""Who is told that a machine will be taken away, and how."""

from __future__ import annotations

import threading

import pytest

from metadata_service import MetadataService, serving
from uneven.errors import ConfigError
from uneven.integrations import spot
from uneven.run.membership.elastic_run import PreemptionNotice
from uneven.runtime.world import discover, signals_named


def test_ec2_announces_by_a_token_and_seconds_are_counted() -> None:
    with serving(MetadataService(quiet=2)) as url:
        notice = spot.aws(url)
        assert notice() is None
        left_s = notice()
        assert left_s is not None
        assert 100 < left_s <= 120
    assert notice() is None, "a service that does not answer any more says nothing"


def test_compute_engine_announces() -> None:
    with serving(MetadataService(quiet=2)) as url:
        notice = spot.gcp(url)
        assert [notice(), notice()] == [None, 30.0]


@pytest.mark.parametrize("cloud", [spot.aws, spot.gcp])
def test_elsewhere_nobody_answers(cloud: type) -> None:
    service = MetadataService()
    service.server_close()
    with pytest.raises(ConfigError, match="no metadata service answers at http"):
        cloud(service.url)


def test_a_notice_is_heard_once() -> None:
    answers, heard, over = iter([None, None, 7.0, 8.0]), [], threading.Event()

    def hear(left_s: float) -> None:
        heard.append(left_s)
        over.set()

    PreemptionNotice(lambda: next(answers), hear, every_s=0.001)
    assert over.wait(10.0)
    assert heard == [7.0]
    assert next(answers) == 8.0


def test_signals_have_names() -> None:
    assert signals_named("USR1, sigusr2", "--leave-on") == (10, 12)
    assert discover({"UNEVEN_LEAVE_ON": "USR1"}).leave_on == (10,)
    for wrong in ("KILL", "USR3"):
        with pytest.raises(ConfigError, match=f"--leave-on={wrong}: {wrong} is not a signal"):
            signals_named(wrong, "--leave-on")
