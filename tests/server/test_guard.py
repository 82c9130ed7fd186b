"""Connections that say nothing, stop in the middle or do not read: each is ended by its own clock."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from fastapi import FastAPI, Request, Response

from framecast.server import limits
from framecast.server.guard import Guard, Impatient, is_loopback

LONG = 64 << 20


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[uvicorn.Server, tuple[str, int]]]:
    """A server of two routes that loses patience soon."""
    for name in ("HEAD_SECONDS", "BODY_SECONDS", "SEND_SECONDS"):
        monkeypatch.setattr(limits, name, 0.2)
    app = FastAPI(openapi_url=None)

    @app.post("/count")
    async def count(request: Request) -> int:
        return len(await request.body())

    @app.get("/long")
    async def long() -> Response:
        return Response(bytes(LONG))

    app.add_middleware(Guard, host="127.0.0.1")
    config = uvicorn.Config(app, http=Impatient, ws="none", lifespan="off", log_level="critical", timeout_keep_alive=1)
    server, listener = uvicorn.Server(config), socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield server, listener.getsockname()
    server.should_exit = True
    thread.join()
    listener.close()


def said(connection: socket.socket) -> bytes:
    """All that comes until the server hangs up."""
    connection.settimeout(5)
    parts = []
    try:
        while part := connection.recv(1 << 16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


@pytest.mark.parametrize("beginning", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "])
def test_who_does_not_say_what_for_is_hung_up_on(address, beginning):
    with socket.create_connection(address[1]) as connection:
        connection.sendall(beginning)
        assert said(connection) == b""


def test_whole_requests_are_answered_one_after_the_other(address):
    request = b"POST /count HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc"
    with socket.create_connection(address[1]) as connection:
        for _ in range(3):
            connection.sendall(request)
            answer = b""
            while not answer.endswith(b"\r\n\r\n3"):
                part = connection.recv(1 << 16)
                assert part, answer
                answer += part
            assert answer.startswith(b"HTTP/1.1 200")
            time.sleep(0.05)
        assert said(connection) == b"", "and then it waits no longer"


def test_a_body_that_stops_coming_is_answered_408(address):
    with socket.create_connection(address[1]) as connection:
        connection.sendall(b"POST /count HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc")
        assert said(connection).startswith(b"HTTP/1.1 408")


def test_who_does_not_read_the_answer_is_hung_up_on(address):
    server, place = address
    with socket.create_connection(place) as connection:
        connection.sendall(b"GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n")
        end = time.monotonic() + 5
        while not server.server_state.connections or server.server_state.total_requests:
            assert time.monotonic() < end
            time.sleep(0.01)
        while server.server_state.connections:
            assert time.monotonic() < end, "the connection is still there"
            time.sleep(0.01)
        assert len(said(connection)) < LONG


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_what_is_loopback(host, loopback):
    assert is_loopback(host) == loopback


@pytest.mark.parametrize(
    ("host", "name", "ours"),
    [
        ("0.0.0.0", "192.168.1.7:8000", True),
        ("0.0.0.0", "[fe80::1]:8000", True),
        ("0.0.0.0", f"{socket.gethostname()}:8000", True),
        ("0.0.0.0", "evil.example:8000", False),  # whoever owns that name may point it at us
        ("127.0.0.1", "192.168.1.7:8000", False),
        ("robot.lab", "Robot.Lab:8000", True),
    ],
)
def test_an_address_is_nobodys_name(host, name, ours):
    assert Guard(FastAPI(), host)._is_ours(name) == ours
