"""The collected specimens: every file comes out as its list says, numbers too. They lie beside the project."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from realchar.cli import main
from realchar.engine.lora import load_adapter
from realchar.engine.merge import set_patched
from realchar.errors import NotFound
from realchar.lora import examine, target_in
from realchar.versions import get_weights, scan_weights
from tests.tiny import DEMO

CASES = Path(__file__).resolve().parents[2] / "shared" / "cases"
EXPECTED: dict[str, Any] = (
    json.loads((CASES / "expected.json").read_text(encoding="utf-8")) if CASES.is_dir() else {"loras": [None]}
)
pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason=f"the specimens are not at {CASES}")
ALLOWED = {"either": {"accept", "warn"}, "either_or_warn": {"accept", "warn"}}


@pytest.mark.parametrize("case", EXPECTED["loras"], ids=lambda case: Path(case["file"]).stem if case else "none")
def test_a_lora_comes_out_as_its_list_says(case: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    file = CASES / case["file"]
    width, blocks = EXPECTED["hidden"], EXPECTED["blocks"]
    code = main(["weights", "check", str(file), "--json", "--width", str(width), "--blocks", str(blocks)])
    report = json.loads(capsys.readouterr().out)
    assert report["action"] in ALLOWED.get(case["action"], {case["action"]}), report["reason"]
    assert code == {"accept": 0, "warn": 1, "reject": 2}[report["action"]]
    assert report["reason"].endswith(".") and file.name in report["reason"] and len(report["sha256"]) == 64
    if report["action"] == "reject":
        return
    wanted = set(case.get("modules", report["modules"]))
    assert set(report["modules"]) == wanted and report["matched"] == len(wanted)
    for module in report["modules"].values():
        assert module["scale"] == pytest.approx(case.get("scale", module["scale"]))
    for start in case.get("ignored", []):
        assert any(name.startswith(start) for name in report["missed"]), report["missed"]
    if "probe" in case:
        check_probe(file, case["probe"])


def check_probe(file: Path, probe: dict[str, Any]) -> None:
    """Compare what the file adds to a weight of zeros."""
    target = target_in(DEMO / "transformer", EXPECTED["hidden"], EXPECTED["blocks"])
    patches = load_adapter(file, target, torch.device("cpu"))[f"{probe['module']}.weight"]
    weight = torch.zeros(target.modules[probe["module"]])
    set_patched(weight, weight, patches)
    assert list(weight.shape) == probe["shape"]
    found = {"fro": weight.norm(), "at00": weight[0, 0], "sum": weight.double().sum()}
    for name, value in found.items():
        assert float(value) == pytest.approx(probe[name], rel=1e-4, abs=1e-6), name


def test_names_in_a_weights_folder(tmp_path: Path) -> None:
    folder = tmp_path / "names"
    shutil.copytree(CASES / "weights_names", folder)
    (folder / "folder.safetensors").mkdir()
    (folder / "link_out.safetensors").symlink_to(CASES / "loras" / "b01_diffusers.safetensors")
    listing = scan_weights(folder)
    names = {info.name for info in listing}
    assert len(names) == len(listing)
    for row in EXPECTED["weights_names"]:
        if "client_sends" in row:
            with pytest.raises(NotFound, match="not in the weights folder"):
                get_weights(folder, row["client_sends"])
        elif "file" in row:
            path = folder / Path(row["file"]).relative_to("weights_names")
            assert any(info.path == path for info in listing) == row["want"].startswith("listed"), path
    # The owner of the folder made the link, so it is followed; no client can make one.
    assert "link_out" in names and "folder" not in names
    target = target_in(DEMO / "transformer", EXPECTED["hidden"], EXPECTED["blocks"])
    assert all(examine(info.path, target).action == "accept" for info in listing)
