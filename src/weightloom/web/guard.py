"""Middleware: who may send requests, how large they may be, and the headers of every response."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weightloom.web.context import LOOPBACK, PageSettings

__all__ = ["POLICY", "Guard"]

log = logging.getLogger(__name__)

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
#: After a body turned out too large, this much more is read and discarded: most clients read the
#: answer only after they have sent everything.
DRAIN = 64 * 10**6
DRAIN_SECONDS = 5.0


class _TooLargeError(Exception):
    pass


class Guard:
    """Accepts GET and POST from this page's own origin only, and limits the size of bodies.

    Bodies are counted as they arrive; Content-Length is not trusted.
    """

    def __init__(self, app: ASGIApp, settings: PageSettings) -> None:
        self.app, self.settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no websockets here
            await send({"type": "websocket.close", "code": 1008})
            return
        request = _Request(scope, receive, send, self._limit(scope["path"]))
        refusal = self._refusal(scope["method"], scope["path"], Headers(scope=scope))
        if refusal is not None:
            await request.answer(*refusal)
            return
        try:
            await self.app(scope, request.receive, request.send)
        except _TooLargeError:
            pass
        except Exception:
            log.exception("%s %s", scope["method"], scope["path"])
            await request.answer(500, "an unexpected error on the server; its log has the details")
        if request.too_large:
            await request.drain()
            await request.answer(413, _too_large(request.limit))

    def _limit(self, path: str) -> int:
        upload = path.startswith("/api/") and path.endswith("/upload")
        return self.settings.upload_limit if upload else self.settings.json_limit

    def _refusal(self, method: str, path: str, headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if not self.settings.any_host and _hostname(host) not in LOOPBACK:
            return 421, (
                f"this page answers requests for localhost only, not for {host[:100]!r}; start it "
                f"with --host to serve other names"
            )
        if method not in ("GET", "POST"):
            return 405, f"{method[:20]} is not supported here; use GET or POST"
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return 403, "the request comes from another site's page"
        foreign = headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
        if foreign and path.startswith("/api/"):
            return 403, "the request comes from another site's page"
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self._limit(path):
            return 413, _too_large(self._limit(path))
        return None


class _Request:
    """Receive and send of one request: counts incoming bytes, adds headers to the response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limit: int) -> None:
        self.limit, self.too_large = limit, False
        self._receive, self._send = receive, send
        self._api = scope["path"].startswith("/api/")
        self._read = 0
        self._more = True  # whether some of the body is still to come
        self._started = False

    async def receive(self) -> Message:
        message = await self._next()
        if self._read > self.limit:
            self.too_large = True
            raise _TooLargeError
        return message

    async def _next(self) -> Message:
        message = await self._receive()
        self._read += len(message.get("body", b""))
        self._more = message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if self.too_large and not self._started:
            return  # the answer is 413, whatever the application sends
        if message["type"] == "http.response.start":
            self._started = True
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers["cache-control"] = "no-store" if self._api else "no-cache"
        await self._send(message)

    async def drain(self) -> None:
        """Read and discard the rest of the body, up to a limit."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._drain(), DRAIN_SECONDS)

    async def _drain(self) -> None:
        most = self._read + DRAIN
        while self._more and self._read < most:
            await self._next()

    async def answer(self, status: int, text: str) -> None:
        if self._started:
            return
        self.too_large = False
        body = json.dumps({"error": text}).encode()
        await self.send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [
                    (b"content-type", b"application/json"),
                    (b"content-length", str(len(body)).encode()),
                ],
            }
        )
        await self.send({"type": "http.response.body", "body": body})


def _hostname(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _too_large(limit: int) -> str:
    return f"the request is larger than the limit of {limit / 1e6:g} MB"
