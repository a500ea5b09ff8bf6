"""Jobs: submit, list, look at, cancel, retry."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from realchar.api.common import Owner
from realchar.errors import NotFound
from realchar.presets import NEGATIVE, PROMPTS
from realchar.schema import EditRequest, Job, LoraRef, SizePolicy

if TYPE_CHECKING:
    from realchar.service import Service


# Wider than anything that is possible, which the service knows better; only what no database column holds is cut off.
Whole = Annotated[int, Field(ge=-(2**53), le=2**53)]


def plain(text: str) -> str:
    """Return an id as it is; no id of ours has other characters, and not every one of those could be looked up."""
    if not text.isascii():
        raise ValueError
    return text


Id = Annotated[str, AfterValidator(plain)]
Number = Annotated[float, Field(allow_inf_nan=False)]


class Lora(BaseModel):
    """A LoRA version by its name in `GET /api/weights`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    strength: Number = 1.0


class Submit(BaseModel):
    """A conversion: an upload and the settings. A negative seed draws one; the same `key` never makes a second job."""

    model_config = ConfigDict(extra="forbid", strict=True)

    upload: Id
    prompt: str = PROMPTS["base"]
    negative_prompt: str = NEGATIVE
    steps: Whole = 20
    cfg: Number = 7.0
    seed: Whole = -1
    size: SizePolicy = "safe"
    long_edge: Whole | None = None
    tile: Whole | None = None
    loras: list[Lora] = Field(default_factory=list)
    preset: str = Field("custom", max_length=40)
    stamp: bool = True
    offload: str | None = Field(None, max_length=40)
    vram: Number | None = None
    strategy: str | None = Field(None, max_length=40)
    key: str | None = Field(None, min_length=8, max_length=80)

    def request(self) -> EditRequest:
        values = self.model_dump(exclude={"upload", "key", "loras"})
        return EditRequest(**values, loras=_refs(self.loras))


class Switch(BaseModel):
    """LoRA versions for a job that has not ended; an empty list is the base alone."""

    model_config = ConfigDict(extra="forbid", strict=True)

    loras: list[Lora]


def _refs(loras: list[Lora]) -> tuple[LoraRef, ...]:
    return tuple(LoraRef(ref.name, ref.strength) for ref in loras)


def job_json(service: Service, job: Job) -> dict[str, Any]:
    """Return what the owner may see of a job; `position` is 1 for the next one, 0 when it isn't waiting."""
    data = dataclasses.asdict(job)
    del data["owner"]
    data["position"] = service.position(job) if job.state == "queued" else 0
    return data


def add_routes(router: APIRouter, service: Service) -> None:
    @router.post("/api/jobs", status_code=201)
    def submit(body: Submit, owner: Owner) -> dict[str, Any]:
        """Queue a conversion."""
        return job_json(service, service.submit(owner, body.upload, body.request(), body.key))

    @router.get("/api/jobs")
    def jobs(owner: Owner, limit: Annotated[int, Query(ge=1, le=500)] = 50) -> list[dict[str, Any]]:
        """List your jobs, newest first."""
        return [job_json(service, job) for job in service.jobs(owner, limit)]

    @router.get("/api/jobs/{job_id}")
    def job(job_id: str, owner: Owner) -> dict[str, Any]:
        """Return one job, with the card of its picture (null once the upload was deleted)."""
        found = service.get(owner, job_id)
        try:
            card = service.card(owner, found.upload, found.request.size, found.request.long_edge)
        except NotFound:
            card = None
        return {**job_json(service, found), "card": card}

    @router.post("/api/jobs/{job_id}/cancel")
    @router.delete("/api/jobs/{job_id}")
    def cancel(job_id: str, owner: Owner) -> dict[str, Any]:
        """Cancel a waiting or running job; one that has ended stays as it is."""
        return job_json(service, service.cancel(owner, job_id))

    @router.post("/api/jobs/{job_id}/weights")
    def switch(job_id: str, body: Switch, owner: Owner) -> dict[str, Any]:
        """Let a waiting job have other LoRA versions, or a running one from its next step on."""
        return job_json(service, service.switch(owner, job_id, _refs(body.loras)))

    @router.post("/api/jobs/{job_id}/retry", status_code=201)
    def retry(job_id: str, owner: Owner) -> dict[str, Any]:
        """Queue a new job with the same picture and settings."""
        return job_json(service, service.retry(owner, job_id))
