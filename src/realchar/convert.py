"""One conversion from the user's file to the result files: preprocess, run the engine, stamp, save."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL.Image import Image

from realchar.catalog import opened_sha256
from realchar.images import PrepareOptions, prepare
from realchar.results import parameters, save, stamped
from realchar.schema import EditRequest, LoraRef, Prepared, Saved, Stage
from realchar.versions import WeightsInfo, get_weights

if TYPE_CHECKING:
    from realchar.engine.pipeline import Engine
    from realchar.engine.together import Work


def conversion(
    engine: Engine,
    request: EditRequest,
    source: Path,
    options: PrepareOptions,
    weights: Path,
    targets: dict[str, Path],
    switch: Callable[[], Sequence[LoraRef] | None] = lambda: None,
) -> Work[None]:
    """Convert `source` and write `targets` (roles `stamped`, `clean`, `before`); the last event is `Saved`.

    switch: asked between steps, gives the versions from now on, or None. It is work for `Engine.alone` or for a loop of
    several. Closing it at any point frees what the engine held and leaves no file.
    """
    began = time.monotonic()
    yield Stage("preprocess")
    picture = prepare(source, options)
    report = picture.report
    yield Prepared(report["source"]["size"], report["prepared"]["size"], report["padded"], report["notes"])
    used = _Used(weights)
    files = used.begin(request.loras)

    def switched() -> list[tuple[LoraRef, Path]] | None:
        refs = switch()
        return None if refs is None else list(zip(refs, used.begin(refs), strict=True))

    decoded = yield from engine.work(request, picture.padded, picture.box, files, switched)
    yield Stage("finish")
    result = picture.returned(decoded.image)
    seconds = time.monotonic() - began
    loras = used.told(request.loras)
    facts: dict[str, Any] = {**decoded.facts, "loras": loras, "source": report["source"], "seconds": round(seconds, 2)}
    for each in facts.get("switches", ()):
        each["loras"] = used.told([LoraRef(**ref) for ref in each["loras"]])
    params = parameters(request, result.size, facts)
    _save_all(targets, picture.picture, result, params)
    yield Saved({role: path.name for role, path in targets.items()}, params, time.monotonic() - began)


class _Used:
    """The LoRA files of a conversion: enough of each, as it was when it was asked for, to know it again.

    They are hashed beside the work: what half a gigabyte takes is longer than switching to it.
    """

    def __init__(self, weights: Path) -> None:
        self._weights = weights
        self._known: dict[str, tuple[WeightsInfo, Future[str]]] = {}

    def begin(self, refs: Sequence[LoraRef]) -> list[Path]:
        """Return where versions lie now, and have them hashed. Raises NotFound."""
        infos = [get_weights(self._weights, ref.name) for ref in refs]
        pool = ThreadPoolExecutor(1, thread_name_prefix="hash")
        for ref, info in zip(refs, infos, strict=True):
            with suppress(OSError):  # it is gone since: told where it is read
                self._known[ref.name] = info, pool.submit(opened_sha256, info.path.open("rb"))
        pool.shutdown(wait=False)
        return [info.path for info in infos]

    def told(self, refs: Sequence[LoraRef]) -> list[dict[str, Any]]:
        """Return what a result says of versions."""
        known = [(ref, *self._known[ref.name]) for ref in refs]
        return [{**asdict(ref), "version": info.version, "sha256": sha.result()} for ref, info, sha in known]


def _save_all(targets: dict[str, Path], before: Image, clean: Image, params: dict[str, Any]) -> None:
    """Write all copies or none: where the last can't be written, those before it are taken back."""
    images = {"before": (before, None), "clean": (clean, params), "stamped": (stamped(clean, params), params)}
    written: list[Path] = []
    try:
        for role, path in targets.items():
            save(images[role][0], path, images[role][1])
            written.append(path)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise
