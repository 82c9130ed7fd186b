"""What one server gives to those who ask; `docs/serve.md` lists the answers beyond each limit.

All together bound its memory: what is uploaded, what waits, what is computed and what is kept.
"""

from __future__ import annotations

MAX_UPLOAD_BYTES = 64 << 20
MAX_REQUEST_BYTES = 64 << 10
"""Of every other request's body."""
MAX_UPLOADS = 4
"""At the same time, those that are being read among them."""
MAX_UPLOAD_PIXELS = 4096 * 2304
"""Of a frame as uploaded."""
MAX_CLIP_FRAMES = 600
MAX_CLIP_BYTES = 32 << 20
"""Of a clip at the model's size."""
MAX_STORE_BYTES = 256 << 20
"""Of a store's clip that are read."""
READ_SECONDS = 60
"""Of computing, to decode an upload."""
READ_BYTES = 3 << 30
"""Of address space, to decode an upload."""

MAX_FRAMES = 128
"""Of a continuation, with those it is given."""
MAX_SAMPLES = 8
MAX_VIDEO_BYTES = 32 << 20
"""Of all samples of a job together."""
MAX_WAITING = 16
"""Jobs in the queue, beside the one that is computed."""

KEPT_BYTES = 128 << 20
"""Of clips, and as many of finished jobs; the oldest are forgotten."""
KEPT_ITEMS = 128

BODY_SECONDS = 120
"""For a request to arrive."""
SEND_SECONDS = 30
"""For a client to take what it is sent."""
HEAD_SECONDS = 10
"""For a connection to say what it wants."""
MAX_CONNECTIONS = 256
ABANDONED_SECONDS = 30
"""After which a job that nobody asks about is cancelled."""
CANCEL_SECONDS = 5
"""After which a worker that does not stop is replaced."""
