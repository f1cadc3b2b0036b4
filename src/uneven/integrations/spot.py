"""Preemption notices, for ``uneven.Session(preemption_notice=…)``.

A notice is a function without arguments, called once per second in a background thread. It returns the seconds until
the machine is reclaimed, or None.
"""

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
    """Return the notice of an EC2 spot instance, two minutes ahead (``spot/instance-action``, with a session token).

    Args:
        url: of the metadata service.
        within_s: longest wait for its answer.

    Raises:
        ConfigError: no answer.
    """
    token, until_s = "", 0.0

    def ask() -> float | None:
        nonlocal token, until_s
        # The token is renewed after half its life, so that no request has an expired one.
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
    """Return the notice of a spot or preemptible instance of Compute Engine (``instance/preempted``), 30 s ahead.

    A GKE pod does not need it: it gets SIGTERM, which has the same effect.

    Args:
        url: of the metadata service.
        within_s: longest wait for its answer.

    Raises:
        ConfigError: no answer.
    """

    def ask() -> float | None:
        path = f"{url}/computeMetadata/v1/instance/preempted"
        said = _answer(path, {"Metadata-Flavor": "Google"}, within_s)
        return _PREEMPTED_S if said is not None and said.strip() == "TRUE" else None

    return _tried(ask, url)


def _tried(ask: Notice, url: str) -> Notice:
    """Call ``ask`` once; return a notice in which later failures count as None."""
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
    """Return the text at an address; None if it does not exist (404). Raises OSError without an answer."""
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
