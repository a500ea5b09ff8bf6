"""Write what ships in `weights/`: sizes and SHA-256 of the demo base's weights and of its LoRA versions.

    python -m tools.demo_base.manifest --weights weights

It writes `manifest.json` and the table of the folder's README, between its marks.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from realchar.catalog import file_sha256

LIMIT = 48_000_000  # bytes of all files together
TABLE = re.compile(r"(<!-- files -->\n).*?(<!-- /files -->)", re.S)


def collect(weights: Path) -> dict[str, Any]:
    """Return the manifest; raises SystemExit when the files are larger than what may ship."""
    demo = [file for file in (weights / "demo").rglob("*") if file.is_file()]
    shipped = sorted([*demo, *weights.glob("demo_real_v*.safetensors")])
    files = {
        file.relative_to(weights).as_posix(): {"bytes": file.stat().st_size, "sha256": file_sha256(file)}
        for file in shipped
        if file.suffix == ".safetensors"  # git may change the line ends of the others
    }
    total = sum(file.stat().st_size for file in shipped)
    if total > LIMIT:
        raise SystemExit(f"The files hold {total:,} bytes, more than {LIMIT:,}; lower the rank of a version.")
    return {"total_bytes": total, "files": files}


def table(manifest: dict[str, Any]) -> str:
    """Return the README's table of the weight files."""
    rows = [f"| `{name}` | {facts['bytes']:,} | `{facts['sha256']}` |" for name, facts in manifest["files"].items()]
    head = ["| file | bytes | sha256 |", "| --- | --- | --- |"]
    return "\n".join([*head, *rows, "", f"All files together: {manifest['total_bytes']:,} bytes.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, default=Path("weights"))
    weights = parser.parse_args().weights
    readme = weights / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.exists() else ""
    if not TABLE.search(text):
        raise SystemExit(f"{str(readme)!r} lacks the marks <!-- files --> and <!-- /files -->; nothing was written.")
    manifest = collect(weights)
    (weights / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    readme.write_text(TABLE.sub(lambda marks: marks[1] + table(manifest) + marks[2], text), encoding="utf-8")


if __name__ == "__main__":
    main()
