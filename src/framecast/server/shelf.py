"""What the server keeps for a while: the oldest makes room for the newest."""

from __future__ import annotations

import secrets
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Shelf(Generic[Item]):
    """Items under names that nobody can guess, up to a number of bytes and of items in all."""

    def __init__(self, max_bytes: int, max_items: int) -> None:
        self.max_bytes, self.max_items = max_bytes, max_items
        self._items: dict[str, tuple[Item, int]] = {}
        self._bytes = 0

    def put(self, item: Item, num_bytes: int, name: str | None = None) -> str:
        name = name or new_name()
        self._items[name] = item, num_bytes
        self._bytes += num_bytes
        while len(self._items) > 1 and (self._bytes > self.max_bytes or len(self._items) > self.max_items):
            _, freed = self._items.pop(next(iter(self._items)))
            self._bytes -= freed
        return name

    def get(self, name: str) -> Item | None:
        """The item, which is now the newest."""
        if name not in self._items:
            return None
        self._items[name] = self._items.pop(name)
        return self._items[name][0]


def new_name() -> str:
    return secrets.token_urlsafe(12)
