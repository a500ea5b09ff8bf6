"""`realchar inspect`: show what the model would see of a picture, without converting it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from PIL import Image

from realchar.cli.names import path_argument, printable, say
from realchar.errors import InvalidInput
from realchar.images import NATIVE_AREA, PrepareOptions, prepare, rejection

ACCEPTED, REFUSED = 0, 2


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "inspect",
        help="show what the model would see of a picture",
        description="Prepare a picture as a conversion would, and report on it. Exit code 0: usable, 2: refused.",
    )
    parser.add_argument("input", metavar="IN", type=path_argument, help="the picture")
    parser.add_argument(
        "--save", metavar="OUT.png", type=path_argument, help="write the prepared picture, before padding"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON and nothing else")
    parser.add_argument("--long-edge", metavar="PIXELS", type=int, default=1024, help="longest side (default 1024)")
    parser.add_argument(
        "--native", action="store_true", help="scale to the model's own training area of 1 megapixel instead"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Return 0 if the picture is usable, 2 if not. Raises InvalidInput if an option or the target is wrong."""
    options = PrepareOptions(long_edge=args.long_edge, area=NATIVE_AREA if args.native else None)
    if args.save is not None:
        _check_target(args.save, args.input)
    try:
        prepared = prepare(args.input, options)
    except InvalidInput as error:
        report = rejection(error)
    else:
        report = prepared.report
        if args.save is not None:
            _save(prepared.picture, args.save)
    say(json.dumps(report, indent=2) if args.json else "\n".join(_lines(args.input, report)))
    return ACCEPTED if report["action"] == "accept" else REFUSED


def _check_target(target: Path, source: Path) -> None:
    if target.suffix.lower() != ".png":
        raise InvalidInput(
            "save", f"--save writes a PNG file, but got {target.name!r}. Choose a name that ends in .png."
        )
    if target.exists() and source.exists() and target.samefile(source):
        raise InvalidInput("save", f"--save would overwrite the original {target.name!r}. Choose another name.")


def _save(picture: Image.Image, target: Path) -> None:
    try:
        picture.save(target, format="PNG")
    except OSError as error:
        why = error.strerror or str(error)
        raise InvalidInput("save", f"{str(target)!r} can't be written ({why}). Choose another place.") from error


def _lines(source: Path, report: dict[str, Any]) -> list[str]:
    name = printable(source.name)
    if report["action"] == "reject":
        return [f"{name}: refused", f"  {report['reason']}"]
    (width, height), (new_width, new_height) = report["source"]["size"], report["prepared"]["size"]
    kind = f"{report['source']['format']}, {report['source']['mode']}"
    return [
        f"{name}: accepted",
        f"  {width}×{height} ({kind}) → {new_width}×{new_height} (RGB)",
        *(f"  {note['text']}" for note in report["notes"] if note["code"] != "resize"),
    ]
