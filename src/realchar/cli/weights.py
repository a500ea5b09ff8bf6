"""`realchar weights`: list the LoRA versions, or check one file: which layout it has, and what it adds to which base."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from realchar.catalog import file_sha256, load_base
from realchar.cli.names import path_argument, printable, say
from realchar.errors import InvalidInput, RealCharError
from realchar.lora import Report, Target, target_in
from realchar.settings import Settings
from realchar.versions import WeightsInfo, get_weights, info_of, list_versions, look_at, unread_files

EXIT_CODES = {"accept": 0, "warn": 1, "reject": 2}


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "weights",
        help="list the LoRA versions, or check a LoRA file",
        description="Say what LoRA files are: their layout, whether they fit the base, and what they add to it.",
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    listing = commands.add_parser(
        "list", help="list the versions in the weights folder", description="List the versions, the newest first."
    )
    check = commands.add_parser(
        "check",
        help="check a LoRA file, all of its numbers too",
        description="Check a file against the base. Exit code 0: it fits, 1: it fits with a warning, 2: it is refused.",
    )
    check.add_argument("file", metavar="FILE", type=path_argument, help="a file, or the name of a version in the list")
    for command in (listing, check):
        command.add_argument("--base", metavar="FOLDER", help="the base to check against; default: the app's own")
        command.add_argument("--folder", metavar="FOLDER", type=path_argument, help="the weights folder")
        command.add_argument(
            "--width", metavar="N", type=_count, help="check against a transformer of this width instead of the base's"
        )
        command.add_argument("--blocks", metavar="N", type=_count, help="and of this many blocks")
        command.add_argument("--json", action="store_true", help="print JSON and nothing else")
    listing.set_defaults(run=run_list)
    check.set_defaults(run=run_check)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or not 0 < int(text[:9]) < 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 99999")
    return int(text)


def _against(args: argparse.Namespace) -> tuple[Target, Path]:
    """Return the transformer to check against, and the weights folder."""
    settings = Settings.load(base=args.base, weights=args.folder)
    base = load_base(settings.base)
    return target_in(base.path / "transformer", args.width, args.blocks), settings.weights


def run_list(args: argparse.Namespace) -> int:
    target, folder = _against(args)
    rows = [version.to_json() for version in list_versions(folder, target)]
    if args.json:
        say(json.dumps(rows, indent=2))
        return 0
    for row in rows:
        say(_line(row))
    for file in unread_files(folder):
        say(f"✕ {printable(file)}  never opened: only .safetensors can be used")
    if not rows:
        say(f"No LoRA versions in {str(folder)!r}; put .safetensors files there.")
    return 0


def run_check(args: argparse.Namespace) -> int:
    target, folder = _against(args)
    try:
        info = _file(args.file, folder)
    except RealCharError as error:
        if not args.json:
            raise
        say(json.dumps({**Report("reject", error.message, error.code).to_json(), "sha256": None}, indent=2))
        return EXIT_CODES["reject"]
    version = look_at(info, folder, target)
    report = version.report
    facts = {**version.to_json(), **report.to_json(), "sha256": _sha256(info.path)}
    if args.json:
        say(json.dumps(facts, indent=2))
    else:
        say("\n".join(_lines(facts, report)))
    return EXIT_CODES[report.action]


def _file(named: Path, folder: Path) -> WeightsInfo:
    """Return the file of this path, or the version of this name. Raises InvalidInput, NotFound."""
    info = info_of(named) if named.exists() else get_weights(folder, str(named))
    if info is None or not info.path.is_file():
        raise InvalidInput("file", f"{str(named)!r} is no file; give a .safetensors file.", value=str(named))
    return info


def _sha256(path: Path) -> str | None:
    try:
        return file_sha256(path)
    except OSError:
        return None


_MARKS = {"accept": "✔", "warn": "⚠", "reject": "✕"}


def _line(row: dict[str, Any]) -> str:
    parts = [f"{_MARKS[row['action']]} {printable(row['name'])}", _size(row["bytes"])]
    if row["action"] == "reject":
        return "  ".join([*parts, printable(row["reason"])])
    parts.append(f"{row['matched']}/{row['total']} modules")
    parts += [f"rank {row['rank']}"] if row["rank"] else []
    parts += ["newest"] if row["default"] else []
    parts += [row["recommendation"]] if row["recommendation"] else []
    parts += [printable(row["reason"])] if row["action"] == "warn" else []
    return "  ".join(parts)


def _lines(facts: dict[str, Any], report: Report) -> list[str]:
    words = {"accept": "fits", "warn": "fits, with a warning", "reject": "refused"}
    lines = [f"{printable(facts['name'])}: {words[report.action]}", f"  {printable(report.reason)}"]
    if report.action != "reject":
        scales = sorted({piece.scale for piece in report.pieces})
        shown = ", ".join(f"{scale:g}" for scale in scales[:4]) + ("…" if len(scales) > 4 else "")
        lines += [
            f"  layout: {report.format}",
            f"  modules: {report.matched} of {report.total}, rank {report.rank or 'none'}, scale {shown}",
            f"  steps: {facts['steps'] if facts['steps'] is not None else 'unknown'}, {_size(facts['bytes'])}",
        ]
        lines += (
            ["  changes the modulation: its table is made anew after a switch"] if report.touches_modulation else []
        )
        lines += [f"  {note}" for note in report.notes]
        lines += [f"  left out: {printable(name[:100])}" for name in report.missed[:8]]
        lines += [f"  … and {len(report.missed) - 8} more" for _ in report.missed[8:9]]
        lines += [f"  {key}: {printable(value)}" for key, value in report.metadata.items()]
    return [*lines, f"  sha256 {facts['sha256']}"]


def _size(num_bytes: int) -> str:
    if num_bytes < 1e5:
        return f"{num_bytes / 1e3:.1f} kB"
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"
