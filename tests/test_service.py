"""The façade: uploads and their cards, checked requests, owners who can't see each other."""

from __future__ import annotations

import errno
import io
import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from safetensors.torch import save_file

from realchar.errors import InvalidInput, JobError, NotFound, StorageError
from realchar.jobs.cleaning import clean
from realchar.results import parameters, save
from realchar.schema import EditRequest, LoraRef
from realchar.service import Service
from realchar.settings import Settings
from tests.lora_files import write

REQUEST = EditRequest(prompt="p", seed=5)


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service(Settings.load())
    yield service
    service.close()


def file(tmp_path: Path, size: tuple[int, int] = (600, 400), name: str = "猫 cat.png") -> Path:
    path = tmp_path / name
    Image.effect_noise(size, 60).convert("RGB").save(path)
    return path


def upload(service: Service, tmp_path: Path, owner: str = "ann") -> str:
    return str(service.add_upload(owner, file(tmp_path), "猫 cat.png")["id"])


def test_a_card_says_what_will_happen(service: Service, tmp_path: Path) -> None:
    source = file(tmp_path)
    card = service.add_upload("ann", source, "猫 cat.png")
    assert not source.exists()
    assert (card["source"], card["prepared"], card["padded"]) == ([600, 400], [352, 235], [352, 256])
    assert card["fits"] and card["need_gb"] > 0 and card["memory"] in ("gpu", "ram") and card["params"] is None
    json.dumps(card)
    exact = service.media("ann", card["exact"])
    with Image.open(exact.path) as image:
        assert image.size == (352, 235) and image.mode == "RGB" and exact.mime == "image/png"
    assert service.media("ann", card["original"]).download == "猫 cat.png"


def test_a_card_for_another_size_is_made_once(service: Service, tmp_path: Path) -> None:
    job = upload(service, tmp_path)
    native = service.card("ann", job, "native")
    assert native["prepared"] != [352, 235] and service.card("ann", job, "native") == native
    assert service.card("ann", job, "safe", 128)["prepared"] == [128, 85]
    assert service.card("ann", job, "safe")["prepared"] == [352, 235]


def test_a_small_picture_is_enlarged_for_the_model_alone(service: Service, tmp_path: Path) -> None:
    Image.new("RGB", (200, 100), "teal").save(tmp_path / "small.png")
    card = service.add_upload("ann", tmp_path / "small.png", "small.png")
    assert (card["prepared"], card["padded"]) == ([200, 100], [352, 192])
    assert any("comes back at 200×100" in note["text"] for note in card["notes"])
    assert service.card("ann", card["id"], "safe", 256)["padded"] == [224, 128]  # chosen to be quick


def test_a_refused_upload_leaves_nothing(service: Service, tmp_path: Path) -> None:
    bad = tmp_path / "x.png"
    bad.write_bytes(b"<html>")
    with pytest.raises(InvalidInput):
        service.add_upload("ann", bad, "x.png")
    assert not bad.exists() and list(service.settings.files.iterdir()) == []


def test_a_tiff_is_shown_by_its_prepared_picture(service: Service, tmp_path: Path) -> None:
    card = service.add_upload("ann", file(tmp_path, name="x.tiff"), "x.tiff")
    assert card["original"] == card["exact"]
    native = service.card("ann", card["id"], "native")
    assert native["original"] == native["exact"]


def test_nothing_of_another_owner_exists(service: Service, tmp_path: Path) -> None:
    card = service.add_upload("ann", file(tmp_path), "x.png")
    job = service.submit("ann", card["id"], REQUEST)
    for call in (
        lambda: service.card("bob", card["id"], "safe"),
        lambda: service.submit("bob", card["id"], REQUEST),
        lambda: service.get("bob", job.id),
        lambda: service.cancel("bob", job.id),
        lambda: service.retry("bob", job.id),
        lambda: service.media("bob", card["exact"]),
    ):
        with pytest.raises(NotFound):
            call()
    assert service.jobs("bob") == [] and service.events("bob", 0) == []


@pytest.mark.parametrize("name", ["../jobs.sqlite", "jobs.sqlite", "/etc/passwd", "..", ""])
def test_media_names_are_no_paths(service: Service, name: str) -> None:
    with pytest.raises(NotFound):
        service.media("ann", name)


def test_seeds_are_drawn_and_kept(service: Service, tmp_path: Path) -> None:
    card = upload(service, tmp_path)
    seeds = {service.submit("ann", card, replace(REQUEST, seed=-1)).request.seed for _ in range(5)}
    assert len(seeds) == 5 and all(0 <= seed < 2**32 for seed in seeds)
    assert service.submit("ann", card, REQUEST).request.seed == 5


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 0},
        {"steps": 101},
        {"cfg": 0.5},
        {"cfg": float("nan")},
        {"cfg": float("inf")},
        {"cfg": 21},
        {"seed": 2**32},
        {"size": "huge"},
        {"long_edge": 8},
        {"prompt": "  "},
        {"prompt": "x" * 5000},
        {"negative_prompt": "x" * 5000},
        {"prompt": "half \ud83d"},
        {"negative_prompt": "nul \0"},
        {"seed": -2},
        {"preset": "x"},
        {"loras": (LoraRef("a\ud83d"),)},
        {"loras": (LoraRef("a", float("nan")),)},
    ],
)
def test_impossible_requests_are_refused(service: Service, tmp_path: Path, change: dict[str, object]) -> None:
    card = upload(service, tmp_path)
    with pytest.raises(InvalidInput):
        service.submit("ann", card, replace(REQUEST, **change))  # type: ignore[arg-type]
    assert service.jobs("ann") == []


def test_lora_names_are_resolved_or_refused(service: Service, tmp_path: Path) -> None:
    write(service.settings.weights / "look_9.safetensors", "kohya")
    card = upload(service, tmp_path)
    job = service.submit("ann", card, replace(REQUEST, loras=(LoraRef("look_9.safetensors", 0.5),)))
    assert job.request.loras == (LoraRef("look_9", 0.5),)
    with pytest.raises(NotFound, match="look_9"):
        service.submit("ann", card, replace(REQUEST, loras=(LoraRef("look_8"),)))
    with pytest.raises(InvalidInput, match="Strength"):
        service.submit("ann", card, replace(REQUEST, loras=(LoraRef("look_9", 3.0),)))


def test_a_version_that_cant_be_used_is_told_before_a_job_is_spent_on_it(service: Service, tmp_path: Path) -> None:
    folder, card = service.settings.weights, upload(service, tmp_path)
    written = write(folder / "good_7.safetensors", "kohya")
    key = next(iter(written.tensors))
    for name, tensors, sentence in (
        ("nan_9", written.tensors | {key: written.tensors[key] * float("nan")}, "no numbers"),
        ("flux_8", {"double_blocks.0.img_attn.qkv.lora_A.weight": written.tensors[key]}, "made for Flux"),
    ):
        save_file({k: t.clone() for k, t in tensors.items()}, folder / f"{name}.safetensors")
        with pytest.raises(InvalidInput, match=sentence):
            service.submit("ann", card, replace(REQUEST, loras=(LoraRef(name),)))
    assert service.jobs("ann") == []
    rows = {row["name"]: row for row in service.versions()}
    # What was found when a file was looked at whole is known to the listing, too.
    assert [(name, row["action"], row["default"]) for name, row in rows.items()] == [
        ("nan_9", "reject", False),
        ("flux_8", "reject", False),
        ("good_7", "accept", True),
    ]
    assert service.look_at_version("nan_9")["action"] == "reject"
    assert str(folder) not in json.dumps(service.versions())


def test_the_picture_beside_a_version_is_shown_small(service: Service) -> None:
    folder = service.settings.weights
    write(folder / "good_7.safetensors", "kohya")
    with pytest.raises(NotFound, match="No picture lies beside"):
        service.version_picture("good_7")
    Image.new("RGB", (900, 300), "teal").save(folder / "good_7.png")
    with Image.open(io.BytesIO(service.version_picture("good_7"))) as picture:
        assert (picture.format, picture.size) == ("WEBP", (256, 85))
    (folder / "good_7.png").write_bytes(b"<svg>")
    with pytest.raises(InvalidInput):
        service.version_picture("good_7")


def test_only_a_job_that_has_not_ended_is_switched(service: Service, tmp_path: Path) -> None:
    write(service.settings.weights / "look_9.safetensors", "kohya")
    job = service.submit("ann", upload(service, tmp_path), REQUEST)
    assert service.switch("ann", job.id, [LoraRef("look_9.safetensors", 0.5)]).request.loras == (
        LoraRef("look_9", 0.5),
    )
    with pytest.raises(NotFound):
        service.switch("bob", job.id, [])
    with pytest.raises(NotFound, match="not in the weights folder"):
        service.switch("ann", job.id, [LoraRef("../x")])
    with pytest.raises(InvalidInput, match="Strength"):
        service.switch("ann", job.id, [LoraRef("look_9", 9.0)])
    with pytest.raises(InvalidInput, match="named twice"):
        service.switch("ann", job.id, [LoraRef("look_9"), LoraRef("look_9.safetensors")])
    with pytest.raises(InvalidInput, match="9 LoRA versions at once"):
        service.switch("ann", job.id, [LoraRef("look_9")] * 9)
    service.cancel("ann", job.id)
    with pytest.raises(JobError, match="has ended"):
        service.switch("ann", job.id, [])


def test_a_full_queue_is_told(tmp_path: Path) -> None:
    service = Service(Settings.load(max_queued=2))
    card = upload(service, tmp_path)
    for _ in range(2):
        service.submit("ann", card, REQUEST)
    with pytest.raises(JobError, match="2 jobs waiting"):
        service.submit("ann", card, REQUEST)
    service.submit("bob", upload(service, tmp_path, "bob"), REQUEST)
    service.close()


def test_settings_come_back_from_an_uploaded_result(service: Service, tmp_path: Path) -> None:
    result = tmp_path / "r.png"
    save(Image.new("RGB", (64, 64), "red"), result, parameters(REQUEST, (64, 64), {}))
    card = service.add_upload("ann", result, "r.png")
    assert card["params"] == json.loads(json.dumps(REQUEST.to_json()))


@pytest.mark.parametrize(
    "change", [{"steps": 10**40}, {"cfg": float("inf")}, {"seed": -99}, {"prompt": "\ud83d"}, {"size": "huge"}]
)
def test_settings_that_can_not_be_used_are_left_aside_and_told(
    service: Service, tmp_path: Path, change: dict[str, object]
) -> None:
    result = tmp_path / "r.png"
    block = parameters(replace(REQUEST, **change), (64, 64), {})  # type: ignore[arg-type]
    info = PngInfo()
    info.add_itxt("realcharacters", json.dumps(block))
    Image.new("RGB", (64, 64), "red").save(result, pnginfo=info)
    card = service.add_upload("ann", result, "r.png")
    assert card["params"] is None and [note["code"] for note in card["notes"]] == ["enlarge", "params_bad"]


def test_a_full_disk_at_upload_is_a_sentence(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    source = file(tmp_path)
    monkeypatch.setattr(Image.Image, "save", full)
    with pytest.raises(StorageError, match="free some space"):
        service.add_upload("ann", source, "x.png")
    assert list(service.settings.files.iterdir()) == []


def test_old_uploads_and_orphans_are_deleted_with_their_files(tmp_path: Path) -> None:
    service = Service(Settings.load(uploads_hours=1.0))
    files = service.settings.files
    upload(service, tmp_path)
    kept = {path.name for path in files.iterdir()}
    orphan, fresh = files / "half.png", files / ".1234.part"
    orphan.write_bytes(b"x")
    os.utime(orphan, (1, 1))
    fresh.write_bytes(b"x")
    assert clean(service.store, service.settings) == ["half.png"]
    assert {path.name for path in files.iterdir()} == kept | {fresh.name}
    assert set(clean(service.store, service.settings, now=time.time() + 7200)) == kept | {fresh.name}
    assert list(files.iterdir()) == []
    service.close()


def test_stats_and_engine_before_anything_ran(service: Service) -> None:
    assert service.engine() == {"state": "starting"}
    stats = service.stats()
    assert stats["queue_length"] == 0 and stats["s_per_step"] is None
    assert 0 < stats["memory"]["used_gb"] < stats["memory"]["total_gb"]
