"""`realchar convert IN -o OUT`: one picture, in this process, with progress."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from realchar.catalog import BaseInfo, load_base
from realchar.cli.names import path_argument
from realchar.convert import conversion
from realchar.errors import InvalidInput
from realchar.images import prepare
from realchar.machine import has_card, prepare_engine_process
from realchar.presets import DEFAULT_PRESET, NEGATIVE, PRESETS, PROMPTS, get_preset, small_edge
from realchar.requests import check_blocks, checked, prepare_options, with_choices
from realchar.results import check_target
from realchar.schema import (
    Degraded,
    EditRequest,
    Event,
    LoraRef,
    Planned,
    Prepared,
    Saved,
    Stage,
    Step,
    Tick,
    event_json,
)
from realchar.settings import Attention, Log, Offload, Precision, Settings, Strategy
from realchar.versions import get_weights, newest_weights, report_of, target_of_base

if TYPE_CHECKING:
    from realchar.engine.pipeline import Engine

STAGE_WORDS = {
    "load": "Loading",
    "preprocess": "Preparing",
    "encode_text": "Reading the prompt",
    "encode_image": "Reading the picture",
    "plan": "Planning memory",
    "denoise": "Denoising",
    "decode": "Decoding",
    "finish": "Saving",
}


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("convert", help="convert one picture")
    parser.add_argument("input", type=path_argument, metavar="IN", help="the picture: PNG, JPEG, WebP, TIFF …")
    parser.add_argument(
        "-o", "--output", type=path_argument, required=True, metavar="OUT", help="OUT.png, .jpg or .webp"
    )
    add_options(parser)
    parser.set_defaults(run=run)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what decides how pictures are converted, the same for one picture and for many."""
    parser.add_argument("--preset", default=DEFAULT_PRESET, choices=PRESETS, help="default: %(default)s")
    parser.add_argument(
        "--weights", metavar="NAME", help="LoRA version, or none; default: the newest that fits the base"
    )
    parser.add_argument(
        "--add",
        metavar="NAME[:S]",
        action="append",
        type=_further,
        default=[],
        help="another LoRA beside it, its strength behind a colon; may be given several times",
    )
    parser.add_argument("--strength", type=float, default=1.0, metavar="S", help="LoRA strength, default %(default)s")
    parser.add_argument("--steps", type=int, metavar="N", help="default: the preset's")
    parser.add_argument("--cfg", type=float, metavar="S", help="guidance scale, default: the preset's")
    parser.add_argument("--seed", type=int, default=-1, metavar="N", help="default: drawn, and told in the result")
    parser.add_argument("--prompt", default=PROMPTS["base"], metavar="T")
    parser.add_argument("--negative", default=NEGATIVE, metavar="T")
    parser.add_argument("--size", choices=("safe", "native"), help="default: the preset's")
    parser.add_argument(
        "--tile", type=int, metavar="PX", help="decode and encode in tiles of this side; default: by the free memory"
    )
    parser.add_argument("--no-stamp", action="store_true", help="write only the clean picture, under the asked name")
    parser.add_argument("--base", metavar="PATH", help="a diffusers folder; default: the embedded demo base")
    parser.add_argument(
        "--offload",
        choices=[mode.value for mode in Offload],
        help="where weights are while unused; default auto: stream on a graphics card, else resident",
    )
    parser.add_argument(
        "--resident-blocks",
        type=int,
        metavar="N",
        help="with stream: blocks that stay there; default: as memory allows",
    )
    parser.add_argument(
        "--vram", type=float, metavar="GB", help="most that the graphics card is to hold; default: what is free"
    )
    parser.add_argument(
        "--strategy",
        choices=[strategy.value for strategy in Strategy],
        help="what memory beyond the weights is for; default: the preset's",
    )
    parser.add_argument(
        "--precision",
        choices=[precision.value for precision in Precision],
        help="fp8: with stream, blocks are held as 8-bit codes; fp8-fast: and multiply as such; default: bf16",
    )
    parser.add_argument(
        "--attention",
        choices=[attention.value for attention in Attention],
        help="who computes attention; default: auto, the fastest exact one that is installed",
    )
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="compile the blocks: faster steps, but the first picture waits for it; default: no",
    )
    parser.add_argument("--json", action="store_true", help="write events as JSON lines to standard output")


def load_settings(args: argparse.Namespace) -> Settings:
    """Return the settings with the options in effect; raises InvalidInput for one that can have no effect here."""
    offload = Offload(args.offload) if args.offload else None
    settings = Settings.load(
        base=args.base,
        offload=offload,
        resident_blocks=args.resident_blocks,
        vram=args.vram,
        precision=Precision(args.precision) if args.precision else None,
        attention=Attention(args.attention) if args.attention else None,
        compile=args.compile,
    )
    mode = settings.offload.resolved(on_gpu=has_card(settings.device))
    if args.resident_blocks is not None and mode is not Offload.STREAM:
        message = f"--resident-blocks {args.resident_blocks} means nothing without streaming; add --offload stream."
        raise InvalidInput("resident_blocks", message, value=args.resident_blocks)
    return settings


def _further(text: str) -> LoraRef:
    """Return a LoRA by its name and, behind the last colon, its strength."""
    name, colon, strength = text.rpartition(":")
    try:
        return LoraRef(name, float(strength)) if colon else LoraRef(text)
    except ValueError:
        return LoraRef(text)  # a colon in the name


def build_request(args: argparse.Namespace, base: BaseInfo, settings: Settings) -> EditRequest:
    """Return the request that the options and the preset make; options win."""
    preset = get_preset(args.preset)
    name = args.weights
    if name is None:
        newest = newest_weights(settings.weights, base)
        name = newest.name if newest else "none"
    return EditRequest(
        prompt=args.prompt,
        negative_prompt=args.negative,
        steps=preset.steps if args.steps is None else args.steps,
        cfg=preset.cfg if args.cfg is None else args.cfg,
        seed=args.seed,
        size=args.size or preset.size,
        long_edge=small_edge(base.long_edge) if preset.small else None,
        tile=args.tile,
        loras=(*(() if name == "none" else (LoraRef(name, args.strength),)), *args.add),
        preset=preset.name,
        stamp=not args.no_stamp,
        strategy=args.strategy or (None if preset.strategy is Strategy.AUTO else preset.strategy.value),
    )


def targets_of(output: Path, stamp: bool) -> dict[str, Path]:
    """Return where the copies go: `OUT.png` stamped with `OUT.clean.png` beside it, or only the clean one."""
    if not stamp:
        return {"clean": output}
    return {"clean": output.with_name(f"{output.stem}.clean{output.suffix}"), "stamped": output}


def load_engine(base: BaseInfo, settings: Settings) -> Engine:
    """Load the base. Imports torch, which takes seconds; raises ModelError, OutOfMemory or InvalidInput."""
    prepare_engine_process()
    from realchar.engine.pipeline import Engine

    if settings.log is Log.DEBUG:  # else what is worth knowing is among the events
        logging.basicConfig(format="%(name)s: %(message)s")
        logging.getLogger("realchar").setLevel(logging.DEBUG)
    return Engine.from_settings(base, settings)


def _check_targets(source: Path, targets: dict[str, Path]) -> None:
    for target in targets.values():
        check_target(target)
        if source.exists() and target.exists() and target.samefile(source):
            raise InvalidInput(
                "overwrite", f"{target.name!r} is the picture itself; give another name with -o.", name=target.name
            )


def run(args: argparse.Namespace) -> int:
    settings = load_settings(args)
    base = load_base(settings.base)
    check_blocks(settings, base)
    targets = targets_of(args.output, not args.no_stamp)
    _check_targets(args.input, targets)
    request = checked(build_request(args, base, settings), settings.weights, base)
    warn_of_versions(request, settings.weights, base)
    settings = with_choices(settings, request)
    show = _show_json if args.json else Terminal(base).show
    with closing(_events(args.input, request, targets, base, settings)) as events:
        for event in events:
            show(event)
    return 0


def warn_of_versions(request: EditRequest, weights: Path, base: BaseInfo) -> None:
    """Say before anything is spent on it what is odd about the LoRA versions."""
    target = target_of_base(base)
    for ref in request.loras:
        report = report_of(get_weights(weights, ref.name), target, look=True)
        if report.action == "warn":
            print(f"realchar: {report.reason}", file=sys.stderr)


def _events(
    source: Path, request: EditRequest, targets: dict[str, Path], base: BaseInfo, settings: Settings
) -> Generator[Event, None, None]:
    """Refuse a bad picture before torch is imported, which takes seconds; then load the base and convert."""
    options = prepare_options(base, request.size, request.long_edge, settings.max_megapixels)
    prepare(source, options)
    yield Stage("load")
    engine = load_engine(base, settings)
    yield from engine.alone(conversion(engine, request, source, options, settings.weights, targets))


def _show_json(event: Event) -> None:
    if not isinstance(event, Tick):
        print(json.dumps({"event": event.kind, **event_json(event)}, ensure_ascii=False), flush=True)


class Terminal:
    """Progress for people: one live line on a terminal, a line a stage and none for steps elsewhere. On stderr."""

    def __init__(self, base: BaseInfo) -> None:
        self.live = sys.stderr.isatty()
        self.began = time.monotonic()
        self.stage = ""
        if base.notice:
            self.line(base.notice)

    def show(self, event: Event) -> None:
        if isinstance(event, Stage):
            self.stage = STAGE_WORDS[event.stage]
            self.status(f"{self.stage}…") if self.live else self.line(f"{self.stage}…")
        elif isinstance(event, Prepared):
            self.line(_sizes(event))
            for note in (note for note in event.notes if note["code"] != "resize"):  # the line above says it
                self.line(f"  · {note['text']}")
        elif isinstance(event, Planned):
            kept = "all weights in memory"
            if event.mode != Offload.RESIDENT:
                kept = f"offload: {event.mode}, {event.resident}/{event.blocks} resident"
            tiles = f", VAE in {event.vae_tiles} tiles" if event.vae_tiles > 1 else ""
            form = "" if event.precision == Precision.BF16 else f" ({event.precision})"
            form += ", compiled" if event.compiled else ""
            form += "" if event.attention == Attention.SDPA else f", attention {event.attention}"
            self.line(f"Runs on {event.device} in {event.dtype}{form}, {kept}{tiles}")
        elif isinstance(event, Degraded):
            self.line(f"  · Memory was short: {event.text}")
        elif isinstance(event, Step) and self.live:
            done = round(24 * event.i / event.n)
            bar = "█" * done + "░" * (24 - done)
            self.status(f"{self.stage} {bar} step {event.i}/{event.n}, about {event.eta_s:.0f} s left")
        elif isinstance(event, Saved):
            self.line(f"Done in {time.monotonic() - self.began:.1f} s, seed {event.params['request']['seed']}:")
            for role, name in sorted(event.files.items(), reverse=True):
                self.line(f"  {name} ({role})")

    def status(self, text: str) -> None:
        print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)

    def line(self, text: str) -> None:
        print(("\r\x1b[2K" if self.live else "") + text, file=sys.stderr, flush=True)


def _sizes(event: Prepared) -> str:
    (w, h), (pw, ph) = event.source, event.prepared
    if event.source == event.prepared:
        return f"{w}×{h}, size unchanged"
    return f"{w}×{h} → {pw}×{ph} (LANCZOS, RGB on white)"
