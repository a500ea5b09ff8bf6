"""A double of `realchar.service.Service` with a scripted engine: real PNG files, no model, deterministic speed."""

from __future__ import annotations

import io
import secrets
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image, ImageFilter, UnidentifiedImageError

from realchar.errors import InvalidInput, JobError, NotFound
from realchar.requests import with_choices
from realchar.schema import EditRequest, Job, JobState, LoraRef, SizePolicy
from realchar.service import EventRow, Media
from realchar.settings import MOST_VRAM, Offload, Settings


@dataclass(frozen=True)
class Base:
    name: str = "demo"
    title: str = "Demo base"
    demo: bool = True
    notice: str = "This is a small demo base: fast, for trying out. A real base makes far better pictures."
    long_edge: int = 384
    native_area: int = 256 * 256
    weight_bytes: int = 30_000_000


def fake_version(name: str, title: str, version: int | None, **facts: Any) -> dict[str, Any]:
    """Return a version as the service lists it."""
    known = {"name": name, "title": title, "version": version, "steps": version, "bytes": 1_000_000, "action": "accept"}
    known |= {"reason": f"LoRA {title!r} fits.", "format": "PEFT", "matched": 840, "total": 840, "rank": 32}
    return {**known, "touches_modulation": False, "recommendation": "", "picture": False, "metadata": {}, **facts}


class FakeService:
    """Keeps everything in memory; `step_s` is the time of a step, `load_s` that of the base, `card_gb` a card's memory."""

    def __init__(self, settings: Settings, step_s: float = 0.15, load_s: float = 0.0, card_gb: float = 0.0) -> None:
        self.settings = settings
        self.memory = {"memory": "gpu" if card_gb else "ram", "used_gb": 3.1, "total_gb": card_gb or 24.0}
        self.step_s, self.load_s = step_s, load_s
        settings.files.mkdir(parents=True, exist_ok=True)
        self.listing = [fake_version(f"AnythingtoRealCharacters2511_{n:07d}", f"v{n}", n) for n in (8500, 3056, 500)]
        self.default: dict[str, Any] | None = None  # none of these was made for a demo base
        self._switches: dict[str, list[dict[str, Any]]] = {}
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)
        self._jobs: dict[str, Job] = {}
        self._keys: dict[tuple[str, str], str] = {}
        self._uploads: dict[str, dict[str, Any]] = {}
        self._files: dict[str, tuple[str, Media]] = {}
        self._rows: list[EventRow] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._engine, daemon=True)
        self._engine_state: dict[str, Any] = {"state": "starting"}

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._thread.is_alive():
            self._thread.join(5)

    def close(self) -> None:
        pass

    def base(self) -> Base:
        return Base()

    def versions(self) -> list[dict[str, Any]]:
        return [{**row, "default": row is self.default} for row in self.listing]

    def look_at_version(self, name: str) -> dict[str, Any]:
        found = next((row for row in self.versions() if row["name"] == name), None)
        if found is None:
            raise NotFound("weights_unknown", f"LoRA version {name!r} is not in the weights folder.", name=name)
        return {**found, "modules": {}}

    def version_picture(self, name: str) -> bytes:
        self.look_at_version(name)
        buffer = io.BytesIO()
        Image.new("RGB", (64, 64), "teal").save(buffer, "WEBP")
        return buffer.getvalue()

    def switch(self, owner: str, job: str, loras: Sequence[LoraRef]) -> Job:
        with self._lock:
            if self.get(owner, job).state != "running":
                raise JobError("job_ended", "This job has ended, so its version can't be switched; convert again.")
            for ref in loras:
                self.look_at_version(ref.name)
            self._switches[job] = [asdict(ref) for ref in loras]
            return self._jobs[job]

    # ---- uploads and files

    def _keep(self, owner: str, image: Image.Image, download: str) -> str:
        name = f"{secrets.token_urlsafe(16)}.png"
        image.save(self.settings.files / name)
        self._files[name] = (owner, Media(self.settings.files / name, "image/png", download))
        return name

    def add_upload(
        self, owner: str, source: Path, name: str, size: SizePolicy = "safe", long_edge: int | None = None
    ) -> dict[str, Any]:
        try:
            with Image.open(source) as opened:
                kind, mode, text = opened.format, opened.mode, dict(opened.info)
                image = opened.convert("RGB")
        except (UnidentifiedImageError, OSError):
            raise InvalidInput("not_picture", "This file is not a picture; choose a PNG, JPG, WebP or TIFF.") from None
        finally:
            size_bytes = source.stat().st_size
            source.unlink()
        params = EditRequest("as before", steps=9, cfg=3.0, seed=77) if "parameters" in text else None
        bad = text.get("parameters") == "broken"
        with self._lock:
            upload = secrets.token_urlsafe(16)
            self._uploads[upload] = {
                "owner": owner,
                "image": image,
                "card": {
                    "id": upload,
                    "name": name,
                    "format": kind,
                    "mode": mode,
                    "bytes": size_bytes,
                    "original": self._keep(owner, image, name),
                    "params": params.to_json() if params and not bad else None,
                },
                "notes": [{"code": "params_bad", "text": "The settings in this file can't be used"}] if bad else [],
            }
        return self.card(owner, upload, size, long_edge)

    def card(self, owner: str, upload: str, size: SizePolicy, long_edge: int | None = None) -> dict[str, Any]:
        with self._lock:
            found = self._uploads.get(upload)
            if found is None or found["owner"] != owner:
                raise NotFound("upload_gone", "The uploaded picture is no longer here; choose it again.")
            edge = 256 if size == "native" else min(long_edge or 384, 384)
            cards = found.setdefault("cards", {})
            if edge not in cards:
                exact = found["image"].copy()
                exact.thumbnail((edge, edge), Image.Resampling.LANCZOS)
                scale = 4 if max(exact.size) < 100 else 1  # as a base that asks for it
                enlarged = [{"code": "enlarge", "text": f"Enlarged {scale} times for the model"}] if scale > 1 else []
                cards[edge] = {
                    "source": list(found["image"].size),
                    "prepared": list(exact.size),
                    "padded": [-(-side * scale // 32) * 32 for side in exact.size],
                    "notes": [
                        {"code": "alpha", "text": "Transparent areas were put on white"},
                        *enlarged,
                        *found["notes"],
                    ],
                    "exact": self._keep(owner, exact, "prepared.png"),
                }
            return self.fitted({**found["card"], **cards[edge]})

    def fitted(self, card: dict[str, Any], offload: str | None = None, vram: float | None = None) -> dict[str, Any]:
        need = {"resident": 58.5, "model": 43.0, "sequential": 2.9}.get(offload or "", 3.8) if self.on_gpu else 1.2
        total = min(vram or MOST_VRAM, self.memory["total_gb"])
        return card | {"fits": need <= total, "need_gb": need, "memory": self.memory["memory"], "total_gb": total}

    def settings_for(self, offload: str | None, vram: float | None) -> Settings:
        return with_choices(self.settings, EditRequest("", offload=offload, vram=vram))

    @property
    def on_gpu(self) -> bool:
        return self.memory["memory"] == "gpu"

    def media(self, owner: str, name: str) -> Media:
        found = self._files.get(name)
        if found is None or found[0] != owner:
            raise NotFound("file_gone", "This file is not here any more; make the picture again.")
        return found[1]

    # ---- jobs

    def submit(self, owner: str, upload: str, request: EditRequest, key: str | None = None) -> Job:
        card = self.card(owner, upload, request.size, request.long_edge)
        if not request.prompt.strip():
            raise InvalidInput("prompt", "The prompt is empty; say what to do with the picture.")
        with self._wake:
            if key and (owner, key) in self._keys:
                return self._jobs[self._keys[owner, key]]
            seed = secrets.randbelow(2**32) if request.seed < 0 else request.seed
            job_id = secrets.token_urlsafe(12)
            job = Job(
                job_id, owner, JobState.QUEUED, replace(request, seed=seed), upload, card["name"], created=time.time()
            )
            self._jobs[job_id] = job
            if key:
                self._keys[owner, key] = job_id
            self._say(job, "job", {"state": "queued"})
            self._wake.notify_all()
            return job

    def get(self, owner: str, job: str) -> Job:
        found = self._jobs.get(job)
        if found is None or found.owner != owner:
            raise NotFound("job_unknown", f"There is no job {job!r} of yours; look at the list of your jobs.")
        return found

    def jobs(self, owner: str, limit: int = 50) -> list[Job]:
        with self._lock:
            return [job for job in reversed(self._jobs.values()) if job.owner == owner][:limit]

    def cancel(self, owner: str, job: str) -> Job:
        with self._lock:
            found = self.get(owner, job)
            if found.state == "queued":
                return self._set(found, JobState.CANCELLED)
            if found.state == "running":
                self._jobs[job] = replace(found, cancelling=True)
            return self._jobs[job]

    def retry(self, owner: str, job: str) -> Job:
        old = self.get(owner, job)
        return self.submit(owner, old.upload, old.request)

    def position(self, job: Job) -> int:
        with self._lock:
            waiting = [other.id for other in self._jobs.values() if other.state == "queued"]
            return waiting.index(job.id) + 1 if job.id in waiting else 0

    def events(self, owner: str, after: int, limit: int = 500) -> list[EventRow]:
        with self._lock:
            return [row for row in self._rows[after:] if row.owner in (None, owner)][:limit]

    def last_event(self) -> int:
        return len(self._rows)

    def engine(self) -> dict[str, Any]:
        return self._engine_state

    def stats(self) -> dict[str, Any]:
        waiting = sum(job.state == "queued" for job in self._jobs.values())
        return {"queue_length": waiting, "memory": self.memory, "s_per_step": self.step_s, "vram_used_gb": None}

    # ---- the scripted engine

    def _say(self, job: Job | None, kind: str, payload: dict[str, Any], preview: bytes | None = None) -> None:
        with self._lock:
            owner, job_id, attempt = (job.owner, job.id, job.attempt) if job else (None, None, 0)
            self._rows.append(
                EventRow(len(self._rows) + 1, owner, job_id, attempt, kind, payload, preview, time.time())
            )

    def _set(self, job: Job, state: JobState, **changes: Any) -> Job:
        with self._lock:
            job = self._jobs[job.id] = replace(self._jobs[job.id], state=state, **changes)
            self._say(job, "job", {"state": str(state), "error": job.error})
            return job

    def say_engine(self, state: str) -> None:
        self._engine_state = {"state": state, "device": "cpu", "base": "Demo base"}
        self._say(None, "engine", self._engine_state)

    def _engine(self) -> None:
        self.say_engine("loading")
        time.sleep(self.load_s)
        self.say_engine("ready")
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._stopping or self._next() is not None)
                if self._stopping:
                    return
                job = self._next()
            if job is not None:
                self._run(self._set(job, JobState.RUNNING, started=time.time(), attempt=1))

    def _next(self) -> Job | None:
        return next((job for job in self._jobs.values() if job.state == "queued"), None)

    def _run(self, job: Job) -> None:
        if "fail" in job.request.prompt:
            error = InvalidInput("flat", "The result has a single colour; lower CFG or strength, then try again.")
            self._set(job, JobState.FAILED, finished=time.time(), error=error.to_json())
            return
        card = self.card(job.owner, job.upload, job.request.size, job.request.long_edge)
        with Image.open(self.media(job.owner, card["exact"]).path) as opened:
            before = opened.copy()
        for stage in ("preprocess", "encode_text", "encode_image", "plan", "denoise"):
            self._say(job, "stage", {"stage": stage})
        mode = Offload(job.request.offload or self.settings.offload).resolved(on_gpu=self.on_gpu)
        plan = {"mode": mode, "resident": 60 if mode is Offload.RESIDENT else 12, "blocks": 60, "vae_tiles": 1}
        self._say(job, "plan", {**plan, "device": "cpu", "dtype": "float32", "attention": "sdpa"})
        n = job.request.steps
        for i in range(1, n + 1):
            time.sleep(self.step_s)
            if self._jobs[job.id].cancelling or self._stopping:
                self._set(job, JobState.CANCELLED, finished=time.time(), cancelling=False)
                return
            asked = self._switches.pop(job.id, None)
            if asked is not None:
                loras = tuple(LoraRef(**ref) for ref in asked)
                job = self._jobs[job.id] = replace(self._jobs[job.id], request=replace(job.request, loras=loras))
                self._say(job, "in_effect", {"loras": asked, "seconds": 0.21, "step": i})
            step = {"i": i, "n": n, "elapsed_s": i * self.step_s, "eta_s": (n - i) * self.step_s}
            self._say(job, "step", step, self._preview(before, i / n))
            self._say(job, "memory", {**self.memory, "used_gb": 3 + i / n})
        self._say(job, "stage", {"stage": "finish"})
        after = before.filter(ImageFilter.GaussianBlur(3))
        files = {
            "before": self._keep(job.owner, before, "before.png"),
            "clean": self._keep(job.owner, after, "picture_clean.png"),
        }
        if job.request.stamp:
            files["stamped"] = self._keep(job.owner, after.rotate(180), "picture_stamped.png")
        result = {"files": files, "params": job.request.to_json(), "seconds": n * self.step_s}
        self._say(job, "saved", result)
        self._set(job, JobState.DONE, finished=time.time(), result=result)

    @staticmethod
    def _preview(before: Image.Image, done: float) -> bytes:
        buffer = io.BytesIO()
        small = before.resize((before.width // 2, before.height // 2)).filter(ImageFilter.GaussianBlur(12 * (1 - done)))
        small.save(buffer, "JPEG", quality=80)
        return buffer.getvalue()


class FakeSupervisor:
    """Starts and stops the scripted engine in place of a worker process."""

    def __init__(self, service: FakeService) -> None:
        self._service = service

    def start(self) -> None:
        self._service.start()

    def stop(self) -> None:
        self._service.stop()


def main(port: int, data: Path, step_s: float, load_s: float, card_gb: float = 0.0) -> int:
    """Serve the page around the scripted engine."""
    from ui.serve import run

    settings = Settings.load({}, port=port, data=data, weights=data / "weights")
    service = FakeService(settings, step_s, load_s, card_gb)
    return run(settings, lambda: service, FakeSupervisor)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2]), *map(float, sys.argv[3:])))
