"""Metadata services of clouds, played by a server here."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer


class MetadataService(HTTPServer):
    """Answers as EC2's service does, by a token, and as Compute Engine's.

    Attributes:
        quiet: answers in which nothing is announced, then it goes in two minutes.
    """

    def __init__(self, quiet: int = 0) -> None:
        self.quiet = quiet
        super().__init__(("127.0.0.1", 0), _Answers)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def announced(self) -> bool:
        self.quiet -= 1
        return self.quiet < 0


class _Answers(BaseHTTPRequestHandler):
    server: MetadataService

    def do_PUT(self) -> None:
        seconds = self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        self._say("token" if self.path == "/latest/api/token" and int(seconds) <= 21600 else None)

    def do_GET(self) -> None:
        path, known = self.path, self.headers["X-aws-ec2-metadata-token"] == "token"
        if path == "/latest/meta-data/spot/instance-action" and known:
            at = (datetime.now(UTC) + timedelta(seconds=120)).strftime("%Y-%m-%dT%H:%M:%SZ")
            self._say(json.dumps({"action": "terminate", "time": at}) if self.server.announced() else None)
        elif path == "/computeMetadata/v1/instance/preempted" and self.headers["Metadata-Flavor"] == "Google":
            self._say("TRUE" if self.server.announced() else "FALSE")
        else:
            self.send_error(401)

    def _say(self, text: str | None) -> None:
        self.send_response(404 if text is None else 200)
        self.end_headers()
        self.wfile.write((text or "").encode())

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(service: MetadataService) -> Iterator[str]:
    thread = threading.Thread(target=service.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield service.url
    finally:
        service.shutdown()
        thread.join()
        service.server_close()
