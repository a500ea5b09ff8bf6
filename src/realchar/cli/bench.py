"""`realchar bench`: what each way of holding a base costs on this machine, beside diffusers' own ways."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from realchar.bench.plot import svg_of
from realchar.bench.run import SCHEMA, Options, run_bench
from realchar.bench.spec import BUDGETS, ROWS
from realchar.bench.table import text_of
from realchar.cli.names import path_argument
from realchar.errors import InvalidInput
from realchar.results import check_writable, write_whole
from realchar.settings import Attention, Settings


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "bench",
        help="measure seconds a step and memory of each way to hold a base",
        description="Compare this engine's offload modes with everything resident and with diffusers' own offload modes, "
        "each in a process of its own. A row that fails is told with its reason. Exit code 0: a report was made, "
        "1: every row failed.",
    )
    _add_base(parser)
    parser.add_argument("--size", type=_size, default=(1024, 1024), metavar="WxH", help="of the picture; 1024x1024")
    parser.add_argument(
        "--steps", type=int, default=3, metavar="N", help="steps that count, after 2; default %(default)s"
    )
    parser.add_argument(
        "--rows", nargs="+", choices=ROWS, default=ROWS, metavar="NAME", help=f"of {', '.join(ROWS)}; all"
    )
    usual = " ".join(f"{budget:g}" for budget in BUDGETS)
    parser.add_argument(
        "--budgets", nargs="+", type=float, metavar="GB", help=f"for stream; {usual} on a card, one row on the CPU"
    )
    parser.add_argument("--lora-rank", type=int, default=32, metavar="R", help="default: %(default)s")
    parser.add_argument(
        "--together", type=int, default=4, metavar="N", help="pictures of the row together; default: %(default)s"
    )
    parser.add_argument("--jobs", type=int, default=100, metavar="N", help="of the row long; default: %(default)s")
    parser.add_argument(
        "--switch-every", type=int, default=5, metavar="N", help="jobs with one LoRA version; default: %(default)s"
    )
    parser.add_argument(
        "--attention",
        type=Attention,
        choices=list(Attention),
        default=Attention.AUTO,
        metavar="NAME",
        help=f"backend of the engine's rows: {', '.join(Attention)}; default: %(default)s",
    )
    parser.add_argument("--vae-sizes", nargs="+", type=_size, default=(), metavar="WxH", help="default: the --size")
    parser.add_argument(
        "--vae-tiles", nargs="+", type=int, default=(512, 256), metavar="PX", help="their sides; 512 256"
    )
    parser.add_argument("--device", metavar="NAME", help="auto, cpu, cuda, cuda:1 …; default: the setting")
    parser.add_argument("--row-timeout", type=float, default=1800.0, metavar="S", help="default: %(default)g seconds")
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON; - : to standard output, and no text")
    parser.add_argument(
        "--plot", metavar="FILE.svg", type=path_argument, help="draw memory and seconds against the budget"
    )
    parser.add_argument(
        "--report", metavar="FILE", type=path_argument, help="show a report of --json; measures nothing"
    )
    parser.set_defaults(run=run)


def _add_base(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--base", metavar="PATH", help="a diffusers folder; default: the embedded demo base")
    parser.add_argument(
        "--random-weights",
        metavar="CONFIG",
        help="instead of --base: write one with random weights, for the configs in this folder, or for the word full, "
        "which is Qwen-Image-Edit-2511 at full size (57 GB)",
    )
    parser.add_argument("--layers", type=int, metavar="N", help="cut random weights to N layers, for a quick try")
    parser.add_argument(
        "--scratch",
        metavar="DIR",
        type=path_argument,
        help="where random weights are kept for the next time; default: a temporary folder, removed at the end",
    )


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write it as 1024x768")
    return int(match[1]), int(match[2])


def run(args: argparse.Namespace) -> int:
    """Measure, or read a report, and show it; returns 0 if any row came through, else 1. Raises RealCharError."""
    target = None if args.json in (None, "-") else Path(args.json)
    for file in filter(None, (target, args.plot)):
        check_writable(file)
    report, ended = _measured(args, target) if args.report is None else (_read(args.report), True)
    if args.json == "-":
        print(_text(report))
    else:
        print(text_of(report))
        _keep(report, target)
    if args.plot is not None:
        _write(args.plot, svg_of(report))
    return int(not ended or not any(row["ok"] for row in report["rows"]))


def _measured(args: argparse.Namespace, target: Path | None) -> tuple[dict[str, Any], bool]:
    """Measure; returns the report, and False where the bench was stopped after some rows. Raises RealCharError."""
    if args.base and args.random_weights:
        raise InvalidInput("base", f"--base {args.base!r} and --random-weights exclude each other; give one of them.")
    settings = Settings.load(base=args.base, device=args.device)
    kept: list[dict[str, Any]] = []

    def keep(report: dict[str, Any]) -> None:
        kept[:] = [report]
        _keep(report, target)

    options = Options(
        base=settings.base,
        random_weights=args.random_weights,
        layers=args.layers,
        scratch=args.scratch,
        size=args.size,
        steps=args.steps,
        rows=tuple(args.rows),
        budgets=None if args.budgets is None else tuple(args.budgets),
        lora_rank=args.lora_rank,
        together=args.together,
        jobs=args.jobs,
        switch_every=args.switch_every,
        attention=args.attention,
        vae_sizes=tuple(args.vae_sizes),
        vae_tiles=tuple(args.vae_tiles),
        device=settings.device,
        row_timeout_s=args.row_timeout,
        say=lambda line: print(line, file=sys.stderr, flush=True),
        keep=keep,
    )
    try:
        with _terminated_is_cancelled():
            return run_bench(options), True
    except KeyboardInterrupt:
        if not kept:
            raise
        print("Stopped; these rows were done:", file=sys.stderr)
        return kept[0], False


@contextmanager
def _terminated_is_cancelled() -> Iterator[None]:
    """Take the signal that ends a service like Ctrl+C, so that processes and folders of the bench go with it."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _read(path: Path) -> dict[str, Any]:
    try:
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if report["schema"] == SCHEMA:
            text_of(report)  # raises for what is no report
            return report
        why = f"its schema is {report['schema']!r}"
    except FileNotFoundError:
        why = "it is not there"
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
    message = f"{str(path)!r} is no report of this version ({why}); make one with --json."
    raise InvalidInput("report", message)


def _keep(report: dict[str, Any], target: Path | None) -> None:
    if target is not None:
        _write(target, _text(report))


def _text(report: dict[str, Any]) -> str:
    return json.dumps(report, indent=1)


def _write(path: Path, text: str) -> None:
    write_whole(path, lambda file: file.write(text.encode()))
