"""`framecast serve`: a page on which people see a model at work."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from framecast.server.app import ServedModel
    from framecast.server.clips import Clips


def serve(
    models: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN|MODEL")] = (),
    /,
    *,
    data: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
) -> None:
    """Open a page on which a model continues clips while you watch, and shows what surprises it.

    Args:
        models: folders of runs or models, or names of models that ship; by default all that ship.
        data: a store whose test clips are offered; by default Moving MNIST where a model is grey.
        host: the address to listen on; only this machine reaches the default.
        port: the port to listen on, 0 for any that is free.
    """
    from framecast.errors import UserError

    try:
        import fastapi  # noqa: F401
        import uvicorn
    except ImportError:
        raise UserError("the page needs FastAPI and uvicorn: run pip install 'framecast[serve]'.") from None
    from framecast.server import guard, limits
    from framecast.server.app import create_app

    app = create_app([_served(name) for name in models or _shipped()], _clips(data), host)
    listener = _listener(host, port)
    shown = f"[{host}]" if ":" in host else host
    print(
        f"framecast serve: open http://{shown}:{listener.getsockname()[1]}/ in a browser; Ctrl-C ends it.", flush=True
    )
    if not guard.is_loopback(host):
        print(
            f"framecast serve: warning: {host} is not loopback. Everybody who reaches this machine can use the page, "
            "without a password and unencrypted.",
            file=sys.stderr,
            flush=True,
        )
    config = uvicorn.Config(
        app,
        http=guard.Impatient,
        ws="none",
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=limits.MAX_CONNECTIONS,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(config).run(sockets=[listener])


def _shipped() -> list[str]:
    from framecast.errors import UserError
    from framecast.model.checkpoint import SHIPPED

    names = sorted(path.name for path in SHIPPED.iterdir() if path.is_dir()) if SHIPPED.is_dir() else []
    if not names:
        raise UserError("no model ships with this framecast: name the folder of a run or a model.")
    return names


def _served(name: str) -> ServedModel:
    from framecast.errors import UserError
    from framecast.model import checkpoint
    from framecast.server.app import ServedModel

    folder = checkpoint.find(name)
    config, weights = checkpoint.read(folder)
    if config.bits != 8:
        raise UserError(f"{name} models pixels of {config.bits} bits; the page shows those of 8.")
    return ServedModel(name, folder.resolve(), config, sum(tensor.numel() for tensor in weights.values()))


def _clips(data: Path | None) -> Clips:
    from framecast.server.clips import DrawnClips, StoreClips

    if data is None:
        return DrawnClips()
    from framecast.data.store import Store

    return StoreClips(Store(data))


def _listener(host: str, port: int) -> socket.socket:
    from framecast.errors import UserError

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{host}:{port} cannot be listened on: {reason}. Try another --port.") from None
