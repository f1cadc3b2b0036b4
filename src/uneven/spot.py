"""Notices that a machine will be taken away, for ``uneven.Session(notice=…)``.

A notice is a function without arguments. It returns the seconds until the machine goes, or None while it stays; it is
asked once a second, in a thread of its own.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from datetime import datetime

from uneven.errors import ConfigError

Notice = Callable[[], float | None]

AWS, GCP = "http://169.254.169.254", "http://metadata.google.internal"


def aws(url: str = AWS, *, within_s: float = 1.0) -> Notice:
    """What EC2 says of a spot instance, two minutes ahead (``spot/instance-action``, by a session token).

    Args:
        url: of the metadata service.
        within_s: how long to wait for its answer.

    Raises:
        ConfigError: nobody answers there.
    """
    token, until_s = "", 0.0

    def ask() -> float | None:
        nonlocal token, until_s
        if time.monotonic() >= until_s:
            until_s = time.monotonic() + _TOKEN_S / 2
            headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_S)}
            token = _answer(f"{url}/latest/api/token", headers, within_s, "PUT") or ""
        path = f"{url}/latest/meta-data/spot/instance-action"
        said = _answer(path, {"X-aws-ec2-metadata-token": token}, within_s)
        if said is None:
            return None
        at = datetime.fromisoformat(json.loads(said)["time"])
        return max(0.0, at.timestamp() - time.time())

    return _tried(ask, url)


def gcp(url: str = GCP, *, within_s: float = 1.0) -> Notice:
    """What Compute Engine says of a spot or preemptible instance (``instance/preempted``), thirty seconds ahead.

    In a GKE pod nothing is needed: it is sent SIGTERM, which means the same.

    Args:
        url: of the metadata service.
        within_s: how long to wait for its answer.

    Raises:
        ConfigError: nobody answers there.
    """

    def ask() -> float | None:
        path = f"{url}/computeMetadata/v1/instance/preempted"
        said = _answer(path, {"Metadata-Flavor": "Google"}, within_s)
        return _PREEMPTED_S if said is not None and said.strip() == "TRUE" else None

    return _tried(ask, url)


def _tried(ask: Notice, url: str) -> Notice:
    """It answers now; later, one that does not answer says nothing."""
    try:
        ask()
    except OSError as error:
        raise ConfigError(f"no metadata service answers at {url} ({error}): is this such a machine?") from None

    def notice() -> float | None:
        try:
            return ask()
        except OSError:
            return None

    return notice


def _answer(url: str, headers: Mapping[str, str], within_s: float, method: str = "GET") -> str | None:
    """The text there; None where there is none.

    Raises:
        OSError: nobody answers.
    """
    try:
        request = urllib.request.Request(url, headers=dict(headers), method=method)
        with urllib.request.urlopen(request, timeout=within_s) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != _NOTHING:
            raise
        return None


_TOKEN_S = 600
_PREEMPTED_S = 30.0
_NOTHING = 404
