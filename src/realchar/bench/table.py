"""The report as aligned text. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

NONE = "–"
Row = dict[str, Any]


def text_of(report: dict[str, Any]) -> str:
    """Return the report for people: the machine, the table of ways to hold the weights, the VAE's, and the notes."""
    steps = [row for row in report["rows"] if row["kind"] in ("engine", "diffusers")]
    parts = ["\n".join(_head(report))]
    if steps:
        parts.append(_aligned([[title for title, _ in COLUMNS], *([get(row) for _, get in COLUMNS] for row in steps)]))
    parts.extend(_aligned(list(_vae(row))) for row in report["rows"] if row["kind"] == "vae" and row["ok"])
    parts.append("\n".join(_sentence(row) for row in report["rows"] if row["ok"] and row["kind"] in SENTENCES))
    failed = [f"{row['name']}: {row['reason']}" for row in report["rows"] if not row["ok"]]
    ratios = [f"Ratios and equality are to the row {report['reference']!r}."] if report["reference"] else []
    parts.append("\n".join([f"· {line}" for line in (*failed, *ratios, *report["notes"])]))
    return "\n\n".join(filter(None, parts))


def _head(report: dict[str, Any]) -> Iterator[str]:
    machine, base, settings = report["machine"], report["base"], report["settings"]
    if machine["card"]:
        yield f"{machine['card']}, {machine['card_gb']:.1f} GB, driver {machine['driver'] or NONE}, CUDA {machine['cuda']}"
    yield f"{machine['cpu']}, {machine['threads']} threads, {machine['ram_gb']:.1f} GB of RAM, {machine['system']}"
    yield f"Python {machine['python']}, torch {machine['torch']}, diffusers {machine['diffusers']}"
    width, height = settings["size"]
    lora = f", LoRA of rank {settings['lora_rank']}" if settings["lora_rank"] else ""
    yield (
        f"{base['title']}, {base['weight_gb']:.2f} GB; {width}x{height}, median of {settings['steps']} steps after "
        f"{settings['warm_up']}{lora}"
    )


def _number(value: float | None, digits: int) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def _at(*keys: str, digits: int = 3, sign: str = "") -> Callable[[Row], str]:
    """Return what shows the number that lies under these keys of a row, or a dash."""

    def get(row: Row) -> str:
        value: Any = row
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return NONE if value is None else sign + _number(value, digits)

    return get


def _kept(row: Row) -> str:
    """Say how many of the transformer's blocks stayed on the device."""
    plan = row.get("plan")
    return f"{plan['resident']}/{plan['blocks']}" if plan else NONE


def _same(row: Row) -> str:
    """Say whether latents, or for diffusers' rows one step's velocities, are the reference's, or how far from them."""
    for what in ("latents", "velocities"):
        if what in row:
            return "=" if row[what]["equal"] else f"{100 * row[what]['relative']:.2g} %"
    return NONE


COLUMNS: list[tuple[str, Callable[[Row], str]]] = [
    ("", lambda row: str(row["name"])),
    ("kept", _kept),
    ("s/step", _at("s_per_step", "cfg")),
    ("×", _at("ratio", "cfg", digits=2)),
    ("no CFG", _at("s_per_step", "no_cfg")),
    ("×", _at("ratio", "no_cfg", digits=2)),
    ("peak GB", _at("peak_gb", digits=2)),
    ("RAM GB", _at("ram_peak_gb", digits=2)),
    ("load s", _at("load_s", digits=1)),
    ("to step 1", _at("to_first_step_s", digits=1)),
    ("1st step", _at("first_step_s", digits=1)),
    ("job s", _at("job_s", digits=1)),
    ("same", _same),
    ("LoRA s/step", _at("lora", "s_per_step")),
    ("×", _at("lora", "ratio", digits=2)),
    ("switch s", _at("lora", "switch_s", digits=2)),
]


def _together(row: Row) -> str:
    found = row["together"]
    seconds, peaks = found["s_per_picture_step"], found["peak_gb"]
    same = "the same pictures" if found["equal"] else "OTHER pictures"
    return (
        f"{row['name']}, without CFG: {seconds['together']:.3f} s a step and picture, {seconds['alone']:.3f} s one by one, "
        f"throughput ×{found['throughput']:.2f}; peak {peaks['together']:.2f} GB, {peaks['alone']:.2f} GB; {same}"
    )


def _long(row: Row) -> str:
    found = row["long"]
    ends = [
        f"{name} {gb['first']:.3f} → {gb['last']:.3f} GB ({100 * found['drift'][name]:+.1f} %)"
        for name, gb in found["gb"].items()
    ]
    verdict = "flat" if found["flat"] else "NOT flat"
    return (
        f"{row['name']}, {found['switches']} LoRA switches, {found['cancelled']} cancelled, {found['seconds']:.0f} s; first "
        f"and last quarter: {', '.join(ends)}: {verdict} within 3 %"
    )


def _attention(row: Row) -> str:
    found = row["attention"]
    said = [
        f"{each['name']} {each['ms']:.2f} ms (error {each['error']:.1e}{_at_most(each)})"
        for each in found["backends"]
        if each["ms"] is not None
    ]
    return f"attention of {found['tokens']} tokens: {', '.join(said)}; {found['chosen']} is taken"


def _at_most(backend: Row) -> str:
    largest = backend.get("max_difference")  # which older reports lack
    return "" if largest is None else f", at most {largest:.1e}"


SENTENCES: dict[str, Callable[[Row], str]] = {"together": _together, "long": _long, "attention": _attention}


def _sentence(row: Row) -> str:
    return SENTENCES[row["kind"]](row)


def _vae(row: Row) -> Iterator[list[str]]:
    width, height = row["size"]
    yield [f"VAE {width}x{height}", "tiles", "s", "GB", "max difference"]
    for way in row["vae"]:
        tiles = NONE if way["tiles"] is None else str(way["tiles"])
        numbers = [_number(way["s"], 3), _number(way["gb"], 2), f"{way['max_difference']:.1g}"]
        yield [f"{way['direction']}, {way['way']}", tiles, *numbers]


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
