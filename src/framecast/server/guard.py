"""What every request passes: it must be addressed to this server, come from its own page, arrive in time and be small.

A page elsewhere can make a browser send requests to a server on loopback, and a name under its control can point there.
So `Host` must be a name of this server, and `Origin`, where a browser tells it, the same.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import h11
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.h11_impl import H11Protocol

from framecast.server import limits

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

UPLOAD_PATH = "/api/clips/upload"

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}


def is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class Guard:
    def __init__(self, app: ASGIApp, host: str) -> None:
        """`host` is what the server listens on."""
        self.app, self.host = app, host.lower()
        self.loopback = is_loopback(host)
        self.names = {"localhost", self.host}
        if not self.loopback:
            self.names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                ours = [(name.encode(), text.encode()) for name, text in HEADERS.items() if name.encode() not in given]
                message = {**message, "headers": [*message["headers"], *ours]}
            await send(message)

        headers = {name.decode("latin-1"): text.decode("latin-1") for name, text in scope["headers"]}
        if refusal := self._refusal(scope, headers):
            await _answer(send_with_headers, *refusal)
        else:
            await self.app(scope, _Body(receive, _max_bytes(scope)), send_with_headers)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        if sum(name == b"host" for name, _ in scope["headers"]) != 1 or not self._is_ours(headers["host"]):
            return 403, "this server is not known under that name: open it as `framecast serve` says."
        if not _same_origin(scope, headers):
            return 403, "this request comes from another page: it is not answered."
        length = headers.get("content-length", "0")
        if length.isascii() and length.isdigit() and int(length) > _max_bytes(scope):
            return 413, _too_large(_max_bytes(scope))
        return None

    def _is_ours(self, host: str) -> bool:
        """Names that a stranger can point at us are not ours; an address is nobody's name."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        return name in self.names or is_loopback(name) or (not self.loopback and _is_address(name))


class _Body:
    """The request's body, as long as it is not too large and does not take too long."""

    def __init__(self, receive: Receive, max_bytes: int) -> None:
        self.receive, self.max_bytes, self.left = receive, max_bytes, max_bytes
        self.deadline = asyncio.get_running_loop().time() + limits.BODY_SECONDS
        self.whole = False

    async def __call__(self) -> Message:
        if self.whole:  # waiting for the client to leave
            return await self.receive()
        try:
            async with asyncio.timeout_at(self.deadline):
                message = await self.receive()
        except TimeoutError:
            raise HTTPException(408, f"the request took more than {limits.BODY_SECONDS} seconds.") from None
        if message["type"] == "http.request":
            self.left -= len(message.get("body", b""))
            self.whole = not message.get("more_body", False)
            if self.left < 0:
                raise HTTPException(413, _too_large(self.max_bytes))
        return message


class Impatient(H11Protocol):
    """Hangs up on who connects and does not say what for, goes on after the answer, or does not read it."""

    _deadline: asyncio.TimerHandle | None = None
    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._deadline, self._patience):
            if timer is not None:
                timer.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._patience = self.loop.call_later(limits.SEND_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _watch(self) -> None:
        busy = self.cycle is not None and not self.cycle.response_complete
        if busy and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        elif not busy and self._deadline is None and self.conn.our_state is not h11.CLOSED:
            self._deadline = self.loop.call_later(limits.HEAD_SECONDS, self._hang_up)

    def _hang_up(self) -> None:
        self._deadline = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


def _same_origin(scope: Scope, headers: dict[str, str]) -> bool:
    if (origin := headers.get("origin")) is not None:
        return origin.lower() in (f"{scheme}://{headers['host'].lower()}" for scheme in ("http", "https"))
    site, navigates = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode") == "navigate"
    if site in ("cross-site", "same-site"):
        return navigates and scope["method"] == "GET"  # a link to the page
    return True


def _max_bytes(scope: Scope) -> int:
    return limits.MAX_UPLOAD_BYTES if scope["path"] == UPLOAD_PATH else limits.MAX_REQUEST_BYTES


def _too_large(max_bytes: int) -> str:
    size = f"{max_bytes >> 20} MiB" if max_bytes >= 1 << 20 else f"{max_bytes >> 10} KiB"
    return f"this is larger than {size}, which is the limit."


async def _answer(send: Send, status: int, sentence: str) -> None:
    body = json.dumps({"detail": sentence}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
