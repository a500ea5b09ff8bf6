"""Keep Pillow's warnings inside, in this thread only.

`warnings.catch_warnings` swaps a list that all threads share. Here one filter is added once, and it matches only while
the asking thread (or task) is inside `quiet()`, so nobody else's warnings change.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_inside: ContextVar[bool] = ContextVar("realchar_quiet", default=False)


class _FromPillow:
    """Stands where a filter has the compiled pattern for the module's name."""

    def match(self, module: str) -> bool:
        return _inside.get() and module.startswith("PIL.")


_FILTER: Any = ("ignore", None, Warning, _FromPillow(), 0)


@contextmanager
def quiet() -> Iterator[None]:
    filters: list[Any] = warnings.filters  # type: ignore[assignment]  # a list, declared as a Sequence
    if _FILTER not in filters:
        filters.insert(0, _FILTER)
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)
