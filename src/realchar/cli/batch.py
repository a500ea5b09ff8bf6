"""`realchar batch DIR -o OUT`: every picture of a folder with one engine, in this process; several at a time with Batch Fast."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import stat
import tempfile
import time
import unicodedata
from collections import Counter, deque
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from realchar.catalog import BaseInfo, load_base
from realchar.cli.convert import (
    Terminal,
    add_options,
    build_request,
    load_engine,
    load_settings,
    targets_of,
    warn_of_versions,
)
from realchar.cli.names import path_argument, printable
from realchar.convert import conversion
from realchar.errors import InvalidInput, ModelError, NotFound, RealCharError, storage_error
from realchar.images import PrepareOptions, prepare
from realchar.requests import check_blocks, checked, prepare_options, with_choices
from realchar.results import check_target
from realchar.schema import Degraded, EditRequest, Ended, Event, Saved, Stage, Step, Tick, event_json
from realchar.settings import Settings

if TYPE_CHECKING:
    from realchar.engine.pipeline import Engine
    from realchar.engine.together import Make, Work

# What files of the formats that are read are called; the first bytes decide what a file really is.
PICTURE_NAME = re.compile(
    r".\.(a?png|jpe?g|jpe|jfif|mpo|webp|gif|tiff?|bmp|dib|jp2|j2[ck]|jp[cfx]|p[bgnp]m|pfm|tga|icb|vda|vst|avifs?|hei[cf]|hif)$",
    re.IGNORECASE,
)
# Errors that every further picture would meet too.
ENDING_CODES = frozenset({"disk", "device", "offload", "resident_blocks", "precision", "compile", "oom_load"})


@dataclass(frozen=True, eq=False)
class Task:
    """A picture (the `i`-th of `n`, from 1) and where its results go, by role."""

    source: Path
    targets: dict[str, Path]
    i: int
    n: int


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "batch",
        help="convert every picture of a folder",
        description="Convert every picture directly in DIR (not in folders below it, and no hidden files) to OUT/NAME.png. "
        "Where two pictures share a name, their suffixes are kept: NAME.jpg.png, NAME.webp.png. Results of an "
        "earlier run are overwritten. Without --seed each picture gets its own. A picture that fails is told and "
        "left out. Exit code 0: all converted, 1: some not, 2: refused as a whole.",
    )
    parser.add_argument("input", type=path_argument, metavar="DIR", help="the folder of pictures")
    parser.add_argument(
        "-o", "--output", type=path_argument, required=True, metavar="OUT", help="another folder; is made"
    )
    add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    settings = load_settings(args)
    base = load_base(settings.base)
    check_blocks(settings, base)
    request = build_request(args, base, settings)
    checked(request, settings.weights, base)
    warn_of_versions(request, settings.weights, base)
    settings = with_choices(settings, request)
    tasks = plan_tasks(find_pictures(args.input), args.output, request.stamp)
    _check_folders(args.input, args.output)
    show = _Json() if args.json else _Lines(base)
    return _run_all(tasks, _Runner(request, base, settings, _identities(tasks)), show)


# ---- what is to be done


def find_pictures(folder: Path) -> list[Path]:
    """Return the picture files directly in `folder`, as people would sort them. Raises InvalidInput if there are none."""
    status = _status(folder)
    if status and not stat.S_ISDIR(status.st_mode):
        message = f"{str(folder)!r} is no folder; for one picture use `realchar convert`."
        raise InvalidInput("no_folder", message, name=str(folder))
    try:
        found = [path for path in folder.iterdir() if _is_picture(path)]
    except OSError as error:
        message = f"Folder {str(folder)!r} can't be read ({error.strerror}); check that it exists and may be read."
        raise InvalidInput("no_folder", message, name=str(folder)) from error
    if not found:
        message = f"No pictures directly in {str(folder)!r}; name the folder that holds them (PNG, JPEG, WebP, TIFF …)."
        raise InvalidInput("no_pictures", message, name=str(folder))
    return sorted(found, key=_natural)


def _is_picture(path: Path) -> bool:
    """Whether the name is that of a picture, and no folder or hidden file has it. A link to nothing counts: it is told."""
    if path.name.startswith(".") or not PICTURE_NAME.search(path.name):
        return False
    status = _status(path)
    hidden = getattr(status, "st_file_attributes", 0) & stat.FILE_ATTRIBUTE_HIDDEN  # on Windows
    return not hidden and not (status and stat.S_ISDIR(status.st_mode))


def _status(path: Path) -> os.stat_result | None:
    with contextlib.suppress(OSError):
        return path.stat()
    return None


def _natural(path: Path) -> tuple[list[str | int], str]:
    """Sort key: `2.png` before `10.png`, capitals beside small letters. Text and numbers alternate, so both compare."""
    parts = re.split(r"(\d+)", path.name.casefold())
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], path.name


def plan_tasks(sources: list[Path], folder: Path, stamp: bool) -> list[Task]:
    """Give every picture result files in `folder` that no other one has, also where capitals don't count."""
    stems = Counter(_same(source.stem) for source in sources)
    taken: set[str] = set()
    tasks = []
    for i, source in enumerate(sources, 1):
        stem = [source.stem] if stems[_same(source.stem)] == 1 else []
        for name in chain(stem, [source.name], (f"{source.name}-{n}" for n in count(2))):
            targets = targets_of(folder / f"{name}.png", stamp)
            keys = {_same(target.name) for target in targets.values()}
            if not keys & taken:
                break
        taken |= keys
        tasks.append(Task(source, targets, i, len(sources)))
    return tasks


def _same(name: str) -> str:
    """Return what is equal for names that some file system takes for one."""
    return unicodedata.normalize("NFC", name).casefold()


def _check_folders(source: Path, target: Path) -> None:
    """Make the folder of the results. Raises what would prevent every one of them."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=target):
            pass
    except OSError as error:
        failure = storage_error(error, repr(str(target)))
        if failure.code == "disk":
            raise failure from error
        raise InvalidInput(failure.code, failure.message, **failure.args_) from error
    if target.samefile(source):
        message = f"{str(target)!r} is the folder of the pictures itself; give another one with -o."
        raise InvalidInput("overwrite", message, name=str(target))


def _identities(tasks: list[Task]) -> set[tuple[int, int]]:
    """Return device and number of every source: a result must not replace one, whatever it is called."""
    found = (_status(task.source) for task in tasks)
    return {(status.st_dev, status.st_ino) for status in found if status}


# ---- doing it


@dataclass
class _Runner:
    """Makes the events of all pictures, one after another or several at a time, as the strategy has it.

    The base is loaded for the first picture that is not refused.
    """

    request: EditRequest
    base: BaseInfo
    settings: Settings
    originals: set[tuple[int, int]]

    def events(self, tasks: list[Task]) -> Generator[tuple[Task, Event | Ended], None, None]:
        left = deque(tasks)
        engine: Engine | None = None
        while left and engine is None:
            try:
                self._check_targets(left[0])
                prepare(left[0].source, self._options)
                yield left[0], Stage("load")
                engine = load_engine(self.base, self.settings)
            except RealCharError as error:
                yield left.popleft(), Ended(error=error)
        if engine is None:
            return

        def more() -> tuple[Task, Make] | None:
            return ((task := left.popleft()), partial(self._work, engine, task)) if left else None

        with contextlib.closing(engine.together(more, engine.memory.width(self.request)).run()) as events:
            yield from events

    @property
    def _options(self) -> PrepareOptions:
        request, most = self.request, self.settings.max_megapixels
        return prepare_options(self.base, request.size, request.long_edge, most)

    def _work(self, engine: Engine, task: Task) -> Work[None]:
        self._check_targets(task)
        request = checked(self.request, self.settings.weights, self.base)
        yield from conversion(engine, request, task.source, self._options, self.settings.weights, task.targets)

    def _check_targets(self, task: Task) -> None:
        for target in task.targets.values():
            check_target(target)
            status = _status(target)
            if status and (status.st_dev, status.st_ino) in self.originals:
                message = (
                    f"The result {target.name!r} would overwrite a picture of this run; give another folder with -o."
                )
                raise InvalidInput("overwrite", message, name=target.name)


def _run_all(tasks: list[Task], runner: _Runner, show: _Json | _Lines) -> int:
    """Return the exit code. What was converted stays whole, however this ends."""
    began = time.monotonic()
    converted = failed = code = 0
    under_way: dict[int, Task] = {}
    try:
        with contextlib.closing(runner.events(tasks)) as events:
            for task, event in events:
                if task.i not in under_way:
                    under_way[task.i] = task
                    show.begin(task)
                if not isinstance(event, Ended):
                    show.show(task, event)
                    continue
                del under_way[task.i]
                if event.error is None:
                    converted += 1
                elif not isinstance(error := event.error, RealCharError):
                    raise error
                else:
                    show.fail(task, error)
                    failed, code = failed + 1, 1
                    if isinstance(error, ModelError | NotFound) or error.code in ENDING_CODES:
                        code = 1 if converted else error.exit_code
                        break
    except KeyboardInterrupt:
        for task in under_way.values() or tasks[:1]:
            show.cancel(task)
        code = 1
    show.sum_up(converted, failed, len(tasks) - converted - failed, time.monotonic() - began)
    return code


# ---- telling it


class _Json:
    """Every event as one JSON line on standard output, with the name of its picture."""

    def begin(self, task: Task) -> None:
        self._print(task, "picture", i=task.i, n=task.n)

    def show(self, task: Task, event: Event) -> None:
        if not isinstance(event, Tick):
            self._print(task, event.kind, **event_json(event))

    def fail(self, task: Task, error: RealCharError) -> None:
        self._print(task, "failed", error=error.to_json())

    def cancel(self, task: Task) -> None:
        self._print(task, "cancelled")

    def sum_up(self, converted: int, failed: int, left: int, seconds: float) -> None:
        line = {
            "event": "summary",
            "converted": converted,
            "failed": failed,
            "left": left,
            "seconds": round(seconds, 1),
        }
        print(json.dumps(line), flush=True)

    def _print(self, task: Task, kind: str, **values: Any) -> None:
        line = {"event": kind, "picture": task.source.name, **values}
        print(json.dumps(line, ensure_ascii=False), flush=True)


class _Lines:
    """Two lines a picture on stderr: its name, and what became of it; between them the live line on a terminal.

    Where several are made at a time, every line names its picture.
    """

    def __init__(self, base: BaseInfo) -> None:
        self._terminal = Terminal(base)
        self._open: set[str] = set()

    def begin(self, task: Task) -> None:
        self._open.add(task.source.name)
        self._terminal.line(f"[{task.i}/{task.n}] {printable(task.source.name)}")

    def show(self, task: Task, event: Event) -> None:
        terminal, name = self._terminal, printable(task.source.name)
        several = f"{name}: " if len(self._open) > 1 else ""
        if isinstance(event, Saved):
            seed = event.params["request"]["seed"]
            names = [name for _, name in sorted(event.files.items(), reverse=True)]  # the stamped one first
            terminal.line(f"  → {several}{printable(', '.join(names))}, seed {seed}, {event.seconds:.1f} s")
            self._open.discard(task.source.name)
        elif isinstance(event, Degraded) or (isinstance(event, Stage | Step) and terminal.live):
            terminal.show(event)

    def fail(self, task: Task, error: RealCharError) -> None:
        self._open.discard(task.source.name)
        self._terminal.line(f"  {printable(task.source.name)} failed: {error.message}")

    def cancel(self, task: Task) -> None:
        name = printable(task.source.name)
        self._terminal.line(f"realchar: cancelled at {name}; what was converted before it is whole.")

    def sum_up(self, converted: int, failed: int, left: int, seconds: float) -> None:
        rest = f", {left} left" if left else ""
        self._terminal.line(f"{converted} converted, {failed} failed{rest} in {seconds:.1f} s")
