"""The page and its interface: models, clips, jobs. `docs/serve.md` describes each route and answer.

Nothing is computed here: clips are decoded and videos drawn in processes of their own, and this one passes on.
"""

from __future__ import annotations

import asyncio
import io
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect

from framecast import media
from framecast.config import ModelConfig
from framecast.errors import UserError
from framecast.server import limits, uploads
from framecast.server.clips import Clips, LoadedClip, checked_number
from framecast.server.guard import UPLOAD_PATH, Guard
from framecast.server.jobs import Job, Queue, QueueFull
from framecast.server.packing import pack
from framecast.server.shelf import Shelf
from framecast.server.surprise import palette, quantised
from framecast.server.worker import Sampling, Surprise

STATIC = Path(__file__).parent / "static"
SHOWN_SIDE = 512
"""Pixels that a downloaded picture is enlarged to, by a whole factor."""
TYPES = {"mp4": "video/mp4", "gif": "image/gif", "npz": "application/octet-stream"}


@dataclass(frozen=True)
class ServedModel:
    name: str
    folder: Path
    config: ModelConfig
    num_parameters: int


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class BuiltIn(_Strict):
    """Which of the clips that are there from the start."""

    model: int
    number: int


class Part(_Strict):
    """Which frames of which clip: `frames` of them from `start` on."""

    clip: str
    start: int = Field(0, ge=0)
    frames: int = Field(ge=1, le=limits.MAX_FRAMES)


class SampleSettings(Part):
    prime_frames: int = Field(ge=0, le=limits.MAX_FRAMES)
    samples: int = Field(1, ge=1, le=limits.MAX_SAMPLES)
    temperature: float = Field(0.9, ge=0, le=10, allow_inf_nan=False)
    seed: int = Field(0, ge=0, lt=2**32)


def create_app(models: list[ServedModel], clips: Clips, host: str) -> FastAPI:
    server = Server(models, clips)
    app = FastAPI(title="framecast", openapi_url=None, lifespan=lambda _: server.running())
    app.add_middleware(Guard, host=host)
    app.add_exception_handler(UserError, _user_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(StarletteHTTPException, _refused)
    app.add_exception_handler(ClientDisconnect, _gone)

    app.get("/")(page)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    app.get("/api/state")(server.state)
    app.get("/api/models/{model}/clips")(server.built_in)
    app.post("/api/clips/built-in", status_code=201)(server.load_built_in)
    app.post(UPLOAD_PATH, status_code=201)(server.upload)
    app.post("/api/jobs/sample", status_code=202)(server.sample)
    app.post("/api/jobs/surprise", status_code=202)(server.surprise)
    app.get("/api/jobs/{name}")(server.job)
    app.delete("/api/jobs/{name}")(server.cancel)
    app.get("/api/jobs/{name}/events")(server.events)
    app.get("/api/jobs/{name}/result.{kind}")(server.result)
    return app


def page() -> FileResponse:
    return FileResponse(STATIC / "index.html")


class Server:
    """What the routes share."""

    def __init__(self, models: list[ServedModel], clips: Clips) -> None:
        self.models, self.clips = models, clips
        self.loaded: Shelf[LoadedClip] = Shelf(limits.KEPT_BYTES, limits.KEPT_ITEMS)
        self.num_uploads = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self.queue = Queue()
        self.encoding = asyncio.Semaphore(1)
        with tempfile.TemporaryDirectory(prefix="framecast-") as folder:
            self.folder = Path(folder)
            carrying_out = asyncio.create_task(self.queue.run())
            try:
                yield
            finally:
                carrying_out.cancel()
                await asyncio.wait([carrying_out])

    async def state(self) -> dict[str, Any]:
        """The models and the limits, for the page to offer what there is."""
        return {
            "models": [_described(model) for model in self.models],
            "waiting": len(self.queue.waiting) + (self.queue.running is not None),
            "limits": {
                "upload_bytes": limits.MAX_UPLOAD_BYTES,
                "clip_frames": limits.MAX_CLIP_FRAMES,
                "frames": limits.MAX_FRAMES,
                "samples": limits.MAX_SAMPLES,
                "video_bytes": limits.MAX_VIDEO_BYTES,
            },
            "suffixes": sorted(uploads.suffixes()),
        }

    async def built_in(self, model: int) -> dict[str, Any]:
        """How many clips there are for a model without uploading any, or why there are none."""
        config = self._model(model).config
        try:
            count = await asyncio.to_thread(self.clips.count, config)
        except UserError as error:
            return {"what": self.clips.what, "count": 0, "why": str(error)}
        return {"what": self.clips.what, "count": count}

    async def load_built_in(self, which: BuiltIn) -> dict[str, Any]:
        config = self._model(which.model).config
        number = checked_number(which.number, await asyncio.to_thread(self.clips.count, config))
        name, video, actions = await asyncio.to_thread(self.clips.clip, number, config)
        return self._keep(LoadedClip(which.model, name, video, actions))

    async def upload(
        self,
        request: Request,
        model: Annotated[int, Query()],
        name: Annotated[str, Query(min_length=1, max_length=255)],
        every: Annotated[int, Query(ge=1, le=1000)] = 1,
    ) -> dict[str, Any]:
        """The request's body is the file; `name` tells by its ending what kind."""
        config = self._model(model).config
        if (suffix := Path(name).suffix.lower()) not in uploads.suffixes():
            raise HTTPException(415, f"{name} is of no kind that can be read: {' '.join(sorted(uploads.suffixes()))}.")
        if self.num_uploads >= limits.MAX_UPLOADS:
            raise HTTPException(429, "others are uploading: try again in a moment.", {"Retry-After": "5"})
        self.num_uploads += 1
        try:
            with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                path = Path(folder, f"upload{suffix}")
                await uploads.receive(request.stream(), path)
                with path.open("rb") as file:
                    if not uploads.begins_like_video(file.read(16)):
                        raise HTTPException(415, f"{name} does not begin like any video or picture that can be read.")
                video = await uploads.decoded(path, (*config.video_shape[1:], config.num_channels), every)
        except UserError as error:
            raise UserError(f"{name} cannot be used: {error}.") from None
        except OSError as error:  # of the folder that uploads wait in
            raise HTTPException(507, f"the server has no room for this: {error.strerror}.") from None
        finally:
            self.num_uploads -= 1
        return self._keep(LoadedClip(model, name, video))

    async def sample(self, settings: SampleSettings) -> dict[str, Any]:
        clip, model, video = self._part(settings)
        config = model.config
        total = settings.samples * settings.frames * int(np.prod([*config.video_shape[1:], config.num_channels]))
        if total > limits.MAX_VIDEO_BYTES:
            raise UserError(
                f"{settings.samples} samples of {settings.frames} frames take {total:,} bytes: at most "
                f"{limits.MAX_VIDEO_BYTES:,} are possible. Take fewer."
            )
        if settings.prime_frames >= settings.frames:
            raise UserError(f"prime_frames is {settings.prime_frames}: of {settings.frames} frames, one must be drawn.")
        if settings.prime_frames > len(video):
            raise UserError(
                f"prime_frames is {settings.prime_frames}: from frame {settings.start} on the clip has {len(video)}."
            )
        draws = config.output == "codes"
        order = Sampling(
            model.folder,
            video[: settings.prime_frames],
            settings.frames,
            settings.samples if draws else 1,
            settings.temperature if draws else None,
            settings.seed,
            _actions(clip, settings, config, settings.frames),
        )
        return self._submitted(order, video)

    async def surprise(self, settings: Part) -> dict[str, Any]:
        clip, model, video = self._part(settings)
        actions = _actions(clip, settings, model.config, len(video))
        return self._submitted(Surprise(model.folder, video, actions), video)

    async def job(self, name: str) -> dict[str, Any]:
        return self._job(name).told()

    async def cancel(self, name: str) -> dict[str, Any]:
        job = self._job(name)
        self.queue.cancel(job)
        return job.told()

    async def events(self, name: str) -> StreamingResponse:
        """Server-sent events: the job whenever it changes, until it ends."""

        async def stream(job: Job) -> AsyncIterator[str]:
            async for told in job.follow():
                yield ": still here\n\n" if told is None else f"data: {json.dumps(told)}\n\n"

        return StreamingResponse(stream(self._job(name)), media_type="text/event-stream")

    async def result(
        self, name: str, kind: Literal["mp4", "gif", "npz"], fps: Annotated[int, Query(ge=1, le=60)] = 10
    ) -> Response:
        job = self._job(name)
        if job.result is None:
            raise HTTPException(409, f"this job is {job.state}: there is a file once it is done.")
        async with self.encoding:
            content = await asyncio.to_thread(_file, job, kind, fps)
        headers = {"content-disposition": f'attachment; filename="framecast-{job.kind}.{kind}"'}
        return Response(content, media_type=TYPES[kind], headers=headers)

    def _model(self, number: int) -> ServedModel:
        if not 0 <= number < len(self.models):
            raise HTTPException(404, f"there is no model {number}: there are {len(self.models)}, from 0 on.")
        return self.models[number]

    def _job(self, name: str) -> Job:
        job = self.queue.find(name)
        if job is None:
            raise HTTPException(404, "this job is not known any more: finished jobs make room for later ones.")
        return job

    def _keep(self, clip: LoadedClip) -> dict[str, Any]:
        """Put a clip on the shelf, and tell of it and of its frames."""
        shape = list(clip.video.shape)
        name = self.loaded.put(clip, clip.video.nbytes)
        return {"id": name, "name": clip.name, "model": clip.model, "shape": shape, "video": pack(clip.video)}

    def _part(self, part: Part) -> tuple[LoadedClip, ServedModel, np.ndarray]:
        """A clip that was loaded, its model, and the frames that are meant."""
        clip = self.loaded.get(part.clip)
        if clip is None:
            raise HTTPException(404, "this clip is not known any more: load it again.")
        model = self.models[clip.model]
        if part.frames < model.config.video_shape[0]:
            raise UserError(f"frames is {part.frames}: this model takes {model.config.video_shape[0]} or more.")
        if part.start >= len(clip.video):
            raise UserError(f"start is {part.start}: the clip has {len(clip.video)} frames, from 0 on.")
        return clip, model, clip.video[part.start : part.start + part.frames]

    def _submitted(self, order: Sampling | Surprise, truth: np.ndarray) -> dict[str, Any]:
        try:
            return self.queue.submit(order, truth).told()
        except QueueFull:
            sentence = f"{limits.MAX_WAITING} jobs are waiting: try again when some are done."
            raise HTTPException(429, sentence, {"Retry-After": "10"}) from None


def _described(model: ServedModel) -> dict[str, Any]:
    config = model.config
    return {
        "name": model.name,
        "video_shape": config.video_shape,
        "channels": config.num_channels,
        "prime_frames": config.prime_frames,
        "slice_shape": config.slice_shape,
        "num_slices": config.num_slices,
        "draws": config.output == "codes",
        "takes_actions": config.action_size > 0,
        "parameters": model.num_parameters,
    }


def _actions(clip: LoadedClip, part: Part, config: ModelConfig, num_frames: int) -> np.ndarray | None:
    """The clip's own actions, where the model takes some."""
    if not config.action_size:
        return None
    there = 0 if clip.actions is None else len(clip.actions) - part.start
    if clip.actions is None or there < num_frames or clip.actions.shape[1] != config.action_size:
        raise UserError(
            f"this model needs {config.action_size} numbers of action for each of {num_frames} frames; this clip has "
            f"them for {max(there, 0)}. Take a clip of the store that the model was trained on, or fewer frames."
        )
    return clip.actions[part.start : part.start + num_frames]


def _file(job: Job, kind: str, fps: int) -> bytes:
    """The result as a file: npz has the numbers, mp4 and gif show them beside the clip."""
    assert job.result is not None
    if job.kind == "sample":
        if kind == "npz":
            return media.encode(job.result, "npz")
        return media.encode(_enlarged(media.grid(media.beside(job.truth[None], job.result))), kind, fps)
    if kind == "npz":
        file = io.BytesIO()
        np.savez_compressed(file, video=job.truth, bits=job.result)
        return file.getvalue()
    assert isinstance(job.order, Surprise)
    coloured = palette()[quantised(job.result, job.facts["prime_frames"])[0]]
    clip = np.broadcast_to(job.truth, coloured.shape)  # grey ones too
    return media.encode(_enlarged(media.grid(np.stack([clip, coloured]), columns=2)), kind, fps)


def _enlarged(clip: np.ndarray) -> np.ndarray:
    factor = max(1, SHOWN_SIDE // max(clip.shape[1:3]))
    return clip.repeat(factor, axis=1).repeat(factor, axis=2)


async def _user_error(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 422)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:]) or "the request"
    return JSONResponse({"detail": f"{where}: {first['msg']}."}, 422)


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=408)  # which nobody reads: the client left in the middle of its request


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException)
    status = 422 if error.status_code == 400 else error.status_code  # a body that is no JSON
    return JSONResponse({"detail": error.detail}, status, error.headers)
