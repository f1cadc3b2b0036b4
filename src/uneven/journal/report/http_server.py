"""An HTTP server of this process, with a token in its address."""

import hmac
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from uneven.errors import ConfigError, reason

LOOPBACK = "127.0.0.1"
_MOST_THREADS = 256  # one for each connection; more connections are closed
_COMMON = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}


class TokenHandler(BaseHTTPRequestHandler):
    """Answers requests whose address begins with the token; an empty token asks for none.

    On the loopback interface a page of another site may reach the port under its own host name (DNS rebinding). So
    ``Host`` and ``Origin`` are checked there, also if the token is right.
    """

    token: str = ""
    server_version, sys_version = "uneven", ""
    timeout = 60.0  # of a silent connection

    def asked(self) -> str | None:
        """Return the path behind the token; None for a wrong request, after its answer."""
        address: Any = self.server.server_address
        host, port = address
        own = [f"{name}{at}" for name in (host, "localhost") for at in (f":{port}", *[""] * (port == 80))]
        origin = self.headers.get("Origin")
        foreign = self.headers.get("Host") not in own or origin not in (None, *(f"http://{one}" for one in own))
        if str(host).startswith("127.") and foreign:
            self.send_error(403)
            return None
        if not self.token:
            return self.path.removeprefix("/")
        _, token, rest = self.path.split("/", 2) if self.path.count("/") > 1 else ("", "", "")
        # In constant time, and with the answer of a missing page: a guess learns nothing.
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            self.send_error(404)
            return None
        return rest

    def head(self, kind: str, status: int = 200, **more: str) -> None:
        """Send the status and all headers but the last, blank line."""
        self.send_response(status)
        for name, value in ({"Content-Type": kind} | _COMMON | more).items():
            self.send_header(name.replace("_", "-"), value)

    def answer(self, kind: str, body: bytes, status: int = 200, **more: str) -> None:
        self.head(kind, status, Content_Length=str(len(body)), **more)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *values: object) -> None:
        """Log nothing, because the address contains the token."""


class HttpServer:
    """A server in threads until it is closed; a ``with`` block closes it.

    ``given`` are attributes of the handler. Port 0 is any free port.

    Raises:
        ConfigError: the port is in use, or ``host`` is not an address of this machine.
    """

    def __init__(self, handler: type[TokenHandler], port: int, host: str = LOOPBACK, **given: Any) -> None:
        try:
            self._server = _ThreadServer((host, port), type("Handler", (handler,), given))
        except OSError as error:
            raise ConfigError(
                f"port {port} on {host} cannot be used ({reason(error)}): give another one, or 0 for any free port"
            ) from error
        self.port: int = self._server.server_address[1]
        token = given.get("token", "")
        self.address = f"http://{host}:{self.port}/{token}{'/' * bool(token)}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="uneven-web", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        self._thread.join()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _ThreadServer(ThreadingHTTPServer):
    daemon_threads = True

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return threading.active_count() < _MOST_THREADS

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):  # of a client that has gone
            super().handle_error(request, client_address)
