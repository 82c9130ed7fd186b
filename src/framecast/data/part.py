"""A part of a store: the unit of work of `prepare`, small enough to be made again when it is interrupted.

What becomes of a part depends on its items and the settings alone, so it does not matter who makes it, where or when.
Its shards are written under temporary names and renamed one after the other; with the last one the part is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from framecast import durable
from framecast.data.clip import Clip, Skipped
from framecast.data.shard import MAX_SHARD_BYTES, Record, ShardWriter, check, file_name, skipped_row
from framecast.errors import Unavailable, UserError

MAX_ITEMS = 512
MAX_REASON = 1000  # characters


@runtime_checkable
class Source(Protocol):
    """What `sources` hold: a frozen dataclass whose fields are its settings."""

    @property
    def items_per_part(self) -> int:
        """At most MAX_ITEMS."""

    def items(self) -> Sequence[str]:
        """The units of work, always in the same order: files, or clips where there are no files."""

    def read(self, items: Sequence[str]) -> Iterator[Clip | Skipped]:
        """What some of the items hold."""


@dataclass(frozen=True)
class Part:
    folder: Path
    number: int
    source: Source
    items: Sequence[str]
    manifest_sha256: bytes
    max_shard_bytes: int = MAX_SHARD_BYTES

    def make(self, lost: Mapping[str, str], begin: Callable[[int], None]) -> None:
        """Write the part's shards. `lost` are items to leave out, and why; `begin` is told of each item before it is
        read, and at last of one more, which is the writing."""
        way_out = "make room and repeat the command; what is done stays"
        with durable.plain_errors(self.folder, way_out), ExitStack() as files:
            writers = [self._writer(files, 0)]
            for place, item in enumerate(self.items):
                begin(place)
                for each in [Skipped(item, lost[item])] if item in lost else read_item(self.source, item):
                    self._put(each, writers, files)
            begin(len(self.items))
            self._publish(writers)

    def _put(self, each: Clip | Skipped, writers: list[ShardWriter], files: ExitStack) -> None:
        record = row = None
        if isinstance(each, Clip):
            record = Record(each)
            size = record.num_bytes + record.index_bytes
            if (alone := ShardWriter.EMPTY_BYTES + size) > self.max_shard_bytes:
                each = Skipped(
                    each.name, f"it would take {alone} bytes, more than the {self.max_shard_bytes} of a shard"
                )
        if isinstance(each, Skipped):
            record, row = None, skipped_row(Skipped(each.name, each.reason[:MAX_REASON]))
            size = len(row) + 1
        if writers[-1].num_bytes + size > self.max_shard_bytes:
            writers.append(self._writer(files, len(writers)))
        if record:
            writers[-1].add(record)
        elif row:
            writers[-1].skip(row)

    def _writer(self, files: ExitStack, number: int) -> ShardWriter:
        path = self.folder / f"{self.number:06}-{number}.tmp"
        file = files.enter_context(durable.temporary(path))
        if file is None:
            raise UserError(f"another command is making part {self.number} of {self.folder}: let it finish")
        return ShardWriter(file)

    def _publish(self, writers: list[ShardWriter]) -> None:
        for stale in self.folder.glob(f"{self.number:06}-*.shard"):  # of a try that died between two renames
            stale.unlink()
        for number, writer in enumerate(writers):
            writer.finish(self.manifest_sha256, self.number, number, len(writers))
        for number, writer in enumerate(writers):
            durable.publish(writer.file, self.folder / file_name(self.number, number, len(writers)))


def read_item(source: Source, item: str) -> Iterator[Clip | Skipped]:
    """What one item holds; whatever is wrong with it costs this item and no more."""
    try:
        for each in source.read([item]):
            if isinstance(each, Clip):
                check(each)
            yield each
    except Unavailable:  # every item would be left out for it
        raise
    except UserError as error:
        yield Skipped(item, str(error))
    except Exception as error:  # decoders have surprises, and a night's work must not end with one
        yield Skipped(item, f"{type(error).__name__}: {error}")
