"""The bench in miniature, on the CPU: what it writes, measures, refuses and reports."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from realchar.bench import child, random_weights, run
from realchar.bench.full_size import TEXT, TRANSFORMER
from realchar.bench.lora_file import write_lora
from realchar.bench.plot import svg_of
from realchar.bench.processes import run_row
from realchar.bench.random_weights import plan_base, write_base
from realchar.bench.run import Options, run_bench, specs
from realchar.bench.shards import ONE, RandomNumbers, write_shards
from realchar.bench.spec import ROWS, SPEEDS, RowSpec, Setting
from realchar.bench.table import text_of
from realchar.catalog import load_base
from realchar.cli import main
from realchar.engine.weights import WeightSource
from realchar.errors import InvalidInput, ModelError, StorageError
from realchar.settings import Attention
from tests.tiny import DEMO

SIZE = (64, 32)
DOCS = Path(__file__).resolve().parents[1] / "docs"
ENGINE_FACTS = {
    "s_per_step",
    "load_s",
    "to_first_step_s",
    "first_step_s",
    "job_s",
    "peak_gb",
    "context_gb",
    "stages_gb",
    "ram_peak_gb",
    "ram_own_gb",
    "plan",
    "degraded",
    "weights_wait",
    "sha256",
    "lora",
}

pytestmark = pytest.mark.usefixtures("two_threads")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base with random weights, of the demo base's configs cut to two layers; only configs are there to be read."""
    folder = tmp_path_factory.mktemp("bench")
    for name in random_weights.MODELS:
        (folder / "configs" / name).mkdir(parents=True)
        text = (DEMO / name / "config.json").read_text(encoding="utf-8")
        (folder / "configs" / name / "config.json").write_text(text, encoding="utf-8")
    return write_base(plan_base(str(folder / "configs"), DEMO, layers=2), folder / "scratch")


def in_process(spec: RowSpec, _timeout_s: float) -> dict[str, Any]:
    """Measure in this process, which has imported torch already; what else a row gives is the same."""
    return json.loads(json.dumps(child.facts(RowSpec.from_json(spec.to_json()))))


@pytest.fixture(scope="module")
def report(base: Path) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "run_row", in_process)
        patch.setattr(run, "LONG_SIZE", SIZE)
        rows = tuple(row for row in ROWS if row not in SPEEDS)
        options = Options(str(base), size=SIZE, steps=1, rows=rows, lora_rank=4, vae_tiles=(32,), together=2, jobs=16)
        return run_bench(options)


# ---- random weights


def test_a_random_base_loads_with_the_configs_that_it_was_made_of(base: Path) -> None:
    info = load_base(base)
    assert (info.title, info.long_edge, info.width) == ("Random weights", 1024, 192)
    source = WeightSource(base / "transformer")
    weight = source.tensor("transformer_blocks.1.attn.to_q.weight").float()
    assert 0.019 < weight.std() < 0.021 and abs(weight.mean()) < 1e-3
    assert torch.equal(source.tensor("txt_norm.weight"), torch.ones(128, dtype=torch.bfloat16))
    assert not source.tensor("transformer_blocks.0.attn.to_q.bias").any()
    assert not [name for name in source.entries if name.startswith("transformer_blocks.2.")]
    names = WeightSource(base / "text_encoder").entries.keys()
    assert names == WeightSource(DEMO / "text_encoder").entries.keys()  # which has two layers, and no head either


def test_a_base_of_the_same_configs_is_reused(base: Path, tmp_path: Path) -> None:
    mark = (base / random_weights.MARK).stat().st_mtime_ns
    plan = plan_base(str(base.parents[1] / "configs"), DEMO, layers=2)
    assert write_base(plan, base.parent) == base
    assert (base / random_weights.MARK).stat().st_mtime_ns == mark
    assert plan_base(str(base.parents[1] / "configs"), DEMO, layers=1).digest != plan.digest
    assert plan_base(str(base), DEMO).sources["tokenizer"] == base / "tokenizer"


def test_the_full_size_is_the_published_one() -> None:
    plan = plan_base("full", DEMO)
    models = {name: random_weights._on_meta(name, plan.configs[name]) for name in random_weights.MODELS}
    shapes = {name: random_weights._shapes(name, model) for name, model in models.items()}
    numbers = {name: sum(np.prod(s) for s in found.values()) / 1e9 for name, found in shapes.items()}
    assert len(models["transformer"].transformer_blocks) == TRANSFORMER["num_layers"] == 60
    assert numbers["transformer"] == pytest.approx(20.43, abs=0.01)
    assert numbers["text_encoder"] == pytest.approx(7.07 + 0.68, abs=0.01)  # no head
    assert numbers["vae"] == pytest.approx(0.127, abs=0.001)
    assert shapes["text_encoder"]["model.embed_tokens.weight"] == (TEXT["vocab_size"], TEXT["hidden_size"])


def test_a_disk_that_is_too_small_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random_weights, "disk_free", lambda _path: 12.3)
    with pytest.raises(
        StorageError, match=r"need 57\.6 GB, but only 12\.3 GB are free at .*; give a folder .*--scratch"
    ):
        write_base(plan_base("full", DEMO), tmp_path / "scratch")
    assert not (tmp_path / "scratch").exists()


@pytest.mark.parametrize(("config", "layers", "sentence"), [("nowhere", None, "full"), ("full", 0, "0 layers")])
def test_configs_that_do_not_work_are_refused(config: str, layers: int | None, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        plan_base(config, DEMO, layers)


def test_shards_hold_every_number_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realchar.bench.shards.SHARD_BYTES", 100)
    shapes = {"b": (4, 8), "a": (3,), "c": (50, 2), "d": (1,)}
    write_shards(tmp_path, "m", shapes, RandomNumbers(97), lambda name, _shape: ONE if name == "a" else None)
    assert len(list(tmp_path.glob("m-*-of-00003.safetensors"))) == 3
    source = WeightSource(tmp_path)
    assert {name: source.tensor(name).shape for name in shapes} == {name: torch.Size(s) for name, s in shapes.items()}
    ring = RandomNumbers(97)
    expected = np.concatenate([np.concatenate(list(ring.cut(n))) for n in (32, 100, 1)])
    written = torch.cat([source.tensor(name).flatten() for name in ("b", "c", "d")])
    assert np.array_equal(written.view(torch.int16).numpy().view(np.uint16), expected)
    assert source.tensor("a").tolist() == [1, 1, 1]


# ---- rows


def test_resident_and_streamed_rows_give_the_same_bits(report: dict[str, Any]) -> None:
    rows = {row["name"]: row for row in report["rows"]}
    row = rows["stream"]
    assert row["picture"] == row["latents"] == {"equal": True, "max_difference": 0.0, "relative": 0.0}
    assert row["sha256"] == rows["resident"]["sha256"]
    assert row["weights_wait"]["tier"] == "plain"
    assert (row["plan"]["mode"], row["plan"]["resident"]) == ("stream", 0)
    assert rows["resident"]["weights_wait"] is None
    assert rows["diffusers"]["velocities"] == {"equal": True, "max_difference": 0.0, "relative": 0.0}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
def test_rows_for_speed_tell_how_far_they_are_from_the_reference(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "run_row", in_process)
    report = run_bench(Options(str(base), size=SIZE, steps=1, rows=("resident", *SPEEDS, "lora"), lora_rank=4))
    rows = {row["name"]: row for row in report["rows"]}
    assert [row for row in rows.values() if not row["ok"]] == []
    assert [rows[f"stream {way}"]["plan"]["precision"] for way in SPEEDS] == ["bf16", "fp8", "fp8-fast"]
    far = [rows[f"stream {way}"]["latents"]["relative"] for way in SPEEDS]
    assert 0 < far[0] < far[1] < far[2] < 0.5
    assert all(rows[f"stream {way}"]["plan"]["compiled"] and rows[f"stream {way}"]["lora"]["ok"] for way in SPEEDS)


def test_every_row_has_the_facts_that_are_documented(report: dict[str, Any]) -> None:
    text = (Path(__file__).resolve().parents[1] / "docs" / "bench.md").read_text(encoding="utf-8")
    assert report == json.loads(json.dumps(report, allow_nan=False))
    assert (report["schema"], report["base"]["title"], report["settings"]["size"]) == (1, "Random weights", list(SIZE))
    rows = {row["name"]: row for row in report["rows"]}
    for name in ("resident", "stream"):
        row = rows[name]
        assert row["ok"] and row.keys() >= ENGINE_FACTS
        assert row["s_per_step"]["no_cfg"] > 0 and 0 < row["s_per_step"]["cfg"] < row["job_s"]
        assert row["load_s"] < row["to_first_step_s"] < row["load_s"] + row["job_s"]
        assert row["lora"]["ok"] and row["lora"]["s_per_step"] > 0 and row["lora"]["switch_s"] > 0
    assert rows["resident"]["ratio"] == {"cfg": 1.0, "no_cfg": 1.0}
    ways = [(way["direction"], way["way"]) for way in rows[f"vae {SIZE[0]}x{SIZE[1]}"]["vae"]]
    assert ways[:4] == [("decode", way) for way in ("whole", "32 pixels", "diffusers", "diffusers enable_tiling()")]
    keys = {key for part in (report, report["machine"], report["base"], report["settings"]) for key in part}
    keys |= {key for row in report["rows"] for key in row} | set(rows["resident"]["lora"])
    keys |= set(rows["vae 64x32"]["vae"][0])
    together, long = rows["stream 2 together"]["together"], rows["stream 16 jobs"]["long"]
    assert together["equal"] and together["width_at_the_end"] == 2
    seconds = together["s_per_picture_step"]
    assert together["throughput"] == seconds["alone"] / seconds["together"] > 0
    assert (long["switches"], long["cancelled"], list(long["drift"])) == (3, 2, ["ram"])
    assert len(long["readings"]["ram"]) == 16 and min(long["readings"]["ram"]) > 0
    assert long["flat"] == (abs(long["drift"]["ram"]) <= 0.03)
    keys |= {*together, *long}
    assert not [key for key in keys if f"`{key}`" not in text]


def test_what_fails_is_a_row_with_its_reason(report: dict[str, Any]) -> None:
    rows = {row["name"]: row for row in report["rows"]}
    for name in ("group-block", "group-leaf", "sequential"):
        assert not rows[name]["ok"] and "no" in rows[name]["reason"] and "graphics card" in rows[name]["reason"]
        assert f"{name}: {rows[name]['reason']}" in text_of(report)


def setting(base: Path, work: Path, **changes: Any) -> Setting:
    return Setting(**({"base": str(base), "device": "cpu", "size": SIZE, "steps": 1, "work": str(work)} | changes))


def test_a_process_of_its_own_tells_why_it_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = run_row(RowSpec("resident", "engine", setting(tmp_path / "none", tmp_path), "resident"), 120)
    assert not row["ok"] and "No base at" in row["reason"]
    assert "within 0.01 s" in run_row(RowSpec("machine", "machine", setting(DEMO, tmp_path)), 0.01)["reason"]
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert "no process" in run_row(RowSpec("machine", "machine", setting(DEMO, tmp_path)), 1)["reason"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [("os.kill(os.getpid(), 9)", "signal 9 .*RAM runs out"), ("sys.exit('no')", "code 1: no"), ("", "without")],
)
def test_a_process_that_ends_without_a_result_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, reason: str
) -> None:
    original = subprocess.run

    def other(command: list[str], **options: Any) -> Any:
        return original([command[0], "-c", f"import os, sys; sys.stdin.read(); {code}"], **options)

    monkeypatch.setattr(subprocess, "run", other)
    row = run_row(RowSpec("machine", "machine", setting(DEMO, tmp_path)), 60)
    assert not row["ok"] and re.search(reason, row["reason"])


def test_an_error_of_any_kind_becomes_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(_spec: RowSpec) -> Any:
        raise RuntimeError("kernel\nmore")

    monkeypatch.setattr(child, "measure", fail)
    row = child.facts(RowSpec("resident", "engine", setting(DEMO, tmp_path)))
    assert row == {"ok": False, "reason": "RuntimeError: kernel"}


def test_diffusers_rows_need_the_inputs_of_a_step(base: Path, tmp_path: Path) -> None:
    row = child.facts(RowSpec("diffusers", "diffusers", setting(base, tmp_path), "diffusers"))
    assert not row["ok"] and "choose resident or stream too" in row["reason"]


def test_on_a_card_there_is_a_row_for_each_usual_budget(tmp_path: Path) -> None:
    found = [spec.name for spec in specs(Options(), setting(DEMO, tmp_path), on_gpu=True)]
    assert found[:6] == ["resident", "stream 4 GB", "stream 8 GB", "stream 12 GB", "stream 16 GB", "stream 24 GB"]
    fast = ["compiled", "fp8", "fp8-fast"]
    assert found[6:12] == [f"stream {budget} GB {way}" for way in fast for budget in (4, 24)]
    assert found[12:14] == ["engine-model", "engine-sequential"]
    assert found[14:16] == ["stream 4 GB pinned", "stream 4 GB staging"]
    assert found[16:18] == ["stream 4 GB 4 together", "stream 4 GB 100 jobs"]
    assert found[18:] == ["attention", "diffusers", "group-block", "group-leaf", "sequential", "vae 1024x1024"]
    assert [s.name for s in specs(Options(rows=("stream",)), setting(DEMO, tmp_path), on_gpu=False)] == ["stream"]


def test_all_rows_of_the_engine_run_with_the_attention_that_is_asked_for(base: Path, tmp_path: Path) -> None:
    options = Options(rows=("stream", "fp8", "long"), attention=Attention.CUDNN, switch_every=2)
    found = list(specs(options, setting(base, tmp_path), on_gpu=False))
    assert [spec.speed.attention for spec in found] == [Attention.CUDNN] * 3
    assert found[1].speed.precision == "fp8" and found[2].switch_every == 2
    row = in_process(found[0], 60)
    assert row["reason"] == "Attention 'cudnn' can't run here (it needs a graphics card); choose auto or sdpa."


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"size": (100, 64)}, "100x64.*multiples of 32"),
        ({"vae_sizes": ((64, 0),)}, "64x0"),
        ({"steps": 0}, "--steps is 0"),
        ({"steps": 99}, "--steps is 99; choose a value from 1 to 98"),
        ({"together": 1}, "--together is 1; choose a value from 2"),
        ({"jobs": 7}, "--jobs is 7"),
        ({"switch_every": 0}, "--switch-every is 0"),
        ({"budgets": (8.0, 0.05)}, "--budgets is 0.05"),
        ({"budgets": (float("nan"),)}, "--budgets is nan"),
        ({"row_timeout_s": float("nan")}, "--row-timeout is nan"),
        ({"row_timeout_s": -5.0}, "--row-timeout is -5"),
        ({"vae_tiles": (512, 0)}, "--vae-tiles is 0"),
        ({"vae_tiles": (7,)}, "--vae-tiles is 7"),
        ({"rows": ("lora", "vae")}, "within the engine's rows"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        Options(**options)


def test_layers_without_random_weights_are_refused() -> None:
    with pytest.raises(InvalidInput, match="add --random-weights"):
        run_bench(Options(str(DEMO), layers=2))


def test_a_lora_needs_weights_that_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "transformer").mkdir()
    (tmp_path / "transformer" / "x.safetensors").write_bytes(b"no")
    with pytest.raises(ModelError, match="can't be read"):
        write_lora(tmp_path / "lora.safetensors", tmp_path, 4, seed=0)


def with_budgets(report: dict[str, Any]) -> dict[str, Any]:
    """Return the report with its streamed row twice, as if it had been measured at two budgets."""
    rows = list(report["rows"])
    rows[1:2] = [rows[1] | {"name": f"stream {budget:g} GB", "budget_gb": budget} for budget in (4.0, 8.0)]
    return report | {"rows": rows}


def test_a_run_that_drifts_is_told(report: dict[str, Any]) -> None:
    row = next(row for row in report["rows"] if row["kind"] == "long")
    worse = row | {"long": row["long"] | {"drift": {"ram": 0.031}, "flat": False}}
    assert "(+3.1 %): NOT flat within 3 %" in text_of(report | {"rows": [worse]})


def test_where_the_resident_row_fails_the_first_streamed_one_is_the_reference(
    report: dict[str, Any], tmp_path: Path
) -> None:
    rows = [
        dict(row)
        for row in with_budgets(report)["rows"]
        if row["mode"] in ("stream", "diffusers") and row["kind"] in ("engine", "diffusers")
    ]
    for i, row in enumerate(rows[:2]):
        np.save(tmp_path / f"stream-{row['budget_gb']:g}-GB.picture.npy", np.full((2, 2), 7 + 3 * i, np.uint8))
        np.save(tmp_path / f"stream-{row['budget_gb']:g}-GB.latents.npy", np.zeros(3, np.float32))
    failed = {"name": "resident", "kind": "engine", "mode": "resident", "budget_gb": None, "ok": False, "reason": "no"}
    assert report["reference"] == "resident"
    assert run._compare([failed, *rows], tmp_path) == "stream 4 GB"
    assert rows[0]["ratio"] == {"cfg": 1.0, "no_cfg": 1.0}
    assert (
        rows[1]["picture"] == {"equal": False, "max_difference": 3.0, "relative": pytest.approx(3 / 7)}
        and rows[1]["latents"]["equal"]
    )
    assert rows[2]["ratio"]["cfg"] == rows[2]["s_per_step"]["cfg"] / rows[0]["s_per_step"]["cfg"]
    assert run._compare([failed], tmp_path) is None


# ---- what is kept and shown


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_bench_that_is_ended_takes_its_processes_along(tmp_path: Path, number: signal.Signals) -> None:
    words = f"-m realchar bench --size 64x64 --steps 98 --rows resident --scratch {tmp_path / 'scratch'}"
    environment = os.environ | {"PYTHONPATH": str(Path(run.__file__).parents[2])}
    with subprocess.Popen([sys.executable, *words.split()], stderr=subprocess.PIPE, env=environment) as bench:
        assert bench.stderr is not None
        while b"resident" not in bench.stderr.readline():
            pass
        own = psutil.Process(bench.pid)
        children = wait_for(own.children)
        bench.send_signal(number)
        bench.wait(20)
        _, alive = psutil.wait_procs(children, timeout=20)
        assert not alive
    if number == signal.SIGTERM:
        assert not list((tmp_path / "scratch").iterdir())


def wait_for(get: Any) -> Any:
    for _ in range(200):
        if found := get():
            return found
        time.sleep(0.05)
    raise AssertionError("nothing came")


def test_a_bench_that_is_stopped_keeps_the_rows_before(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(spec: RowSpec, timeout_s: float) -> dict[str, Any]:
        if spec.name == "stream":
            raise KeyboardInterrupt
        return in_process(spec, timeout_s)

    monkeypatch.setattr(run, "run_row", stopped)
    file = tmp_path / "new" / "bench.json"
    words = f"bench --base {base} --size 64x32 --steps 1 --rows resident stream --json {file}"
    assert main(words.split()) == 1
    kept = json.loads(file.read_text())
    assert [row["name"] for row in kept["rows"]] == ["resident"] and kept["reference"] == "resident"


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_a_place_that_can_not_be_written_is_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    monkeypatch.setattr("realchar.cli.bench.run_bench", lambda _: pytest.fail("measured"))
    (tmp_path / "file").write_bytes(b"")
    assert main(["bench", option, str(tmp_path / "file" / "bench.out")]) == 1
    assert "could not be written" in capsys.readouterr().err
    assert main(["bench", option, str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_the_plot_is_xml_with_both_curves(report: dict[str, Any]) -> None:
    root = ET.fromstring(svg_of(with_budgets(report)))
    space = "{http://www.w3.org/2000/svg}"
    lines = root.findall(f".//{space}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [2, 2]
    texts = [text.text for text in root.iter(f"{space}text")]
    assert texts.count("stream") == texts.count("diffusers") == texts.count("resident") == 2
    with pytest.raises(InvalidInput, match="no streamed row with a budget"):
        svg_of(report)


def test_a_report_is_shown_again(report: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, plot = tmp_path / "bench.json", tmp_path / "bench.svg"
    shown = with_budgets(report)
    file.write_text(json.dumps(shown), encoding="utf-8")
    assert main(["bench", "--report", str(file), "--plot", str(plot)]) == 0
    assert capsys.readouterr().out == text_of(shown) + "\n" and plot.read_text() == svg_of(shown)
    assert main(["bench", "--report", str(file), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == shown
    for broken in ([{}], [shown["rows"][0] | {"peak_gb": [1]}]):
        file.write_text(json.dumps(shown | {"rows": broken}), encoding="utf-8")
        assert main(["bench", "--report", str(file)]) == 2
        assert "is no report of this version" in capsys.readouterr().err
    assert main(["bench", "--report", str(tmp_path / "none.json")]) == 2
    assert "it is not there" in capsys.readouterr().err
    file.write_text(json.dumps(shown | {"schema": 0}), encoding="utf-8")
    assert main(["bench", "--report", str(file)]) == 2
    assert "its schema is 0" in capsys.readouterr().err


def test_help_needs_no_torch() -> None:
    code = "import sys; from realchar.cli import main\ntry: main(['bench', '--help'])\nexcept SystemExit: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--random-weights" in done.stdout and done.stdout.splitlines()[-1] == "False"


@pytest.mark.slow
def test_the_command_measures_each_row_in_its_own_process(base: Path, tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    words = f"bench --random-weights {base.parents[1] / 'configs'} --layers 2 --scratch {base.parent} --size 64x32 --steps 1"
    assert main([*words.split(), "--rows", *ROWS[:2], "--json", str(file)]) == 0
    rows = json.loads(file.read_text())["rows"]
    assert [row["name"] for row in rows] == ["resident", "stream"] and all(row["ok"] for row in rows)
    assert rows[1]["latents"]["equal"] and rows[1]["peak_gb"] > 0.1


@pytest.mark.parametrize("file", sorted(DOCS.glob("performance/*.json")), ids=lambda file: file.stem)
def test_published_reports_can_still_be_shown(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--report", str(file)]) == 0
    assert json.loads(file.read_text(encoding="utf-8"))["machine"]["card"] in capsys.readouterr().out
