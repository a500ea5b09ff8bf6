"""Helpers for tests of streaming: a run of a few steps, LoRA files, and an accelerator whose copies really lag behind."""

from __future__ import annotations

import hashlib
import queue
import random
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from diffusers import QwenImageTransformer2DModel
from safetensors.torch import save_file
from torch import Tensor

from realchar.engine.blocks import Blocks, ResidentBlocks
from realchar.engine.denoise import Branch, guided, lockstep
from realchar.engine.weights import WeightSource

SHAPE = (1, 4, 3)
TIMESTEPS = (1.0, 0.61, 0.17)
ATTENTION, MLP = "transformer_blocks.0.attn.to_q", "transformer_blocks.3.txt_mlp.net.0.proj"
MODULATION, TIME = "transformer_blocks.5.img_mod.1", "time_text_embed.timestep_embedder.linear_1"
EVERY_KIND = (ATTENTION, MLP, "transformer_blocks.7.attn.add_k_proj", MODULATION, TIME, "proj_out")


def resident(
    folder: Path, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> tuple[QwenImageTransformer2DModel, Blocks]:
    transformer = QwenImageTransformer2DModel.from_pretrained(folder, torch_dtype=dtype).to(device)
    transformer.eval().requires_grad_(False)
    return transformer, ResidentBlocks(transformer, WeightSource(folder))


def branches(transformer: QwenImageTransformer2DModel, latents: Tensor, timestep: Tensor, cfg: bool) -> list[Branch]:
    generator = torch.Generator().manual_seed(5)
    like = {"device": latents.device, "dtype": latents.dtype}
    reference = torch.randn(latents.shape, generator=generator).to(**like)
    width = transformer.config.joint_attention_dim
    prompts = [torch.randn(1, n, width, generator=generator).to(**like) for n in ((9, 6) if cfg else (9,))]
    return [Branch(latents, reference, prompt, timestep, (SHAPE, SHAPE)) for prompt in prompts]


@torch.inference_mode()
def denoise(
    transformer: QwenImageTransformer2DModel,
    blocks: Blocks,
    *,
    cfg: bool = True,
    prepared: bool = True,
    timesteps: tuple[float, ...] = TIMESTEPS,
    stop_after: int | None = None,
) -> Tensor:
    """Return the latents after a few steps, or after closing the run behind a number of blocks."""
    dtype, device = transformer.proj_out.weight.dtype, transformer.proj_out.weight.device
    latents = torch.randn(1, 12, 64, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    schedule = torch.tensor(timesteps, device=device, dtype=dtype)
    for _ in blocks.prepare(schedule) if prepared else ():
        pass
    blocks_run = 0
    for i in range(len(timesteps)):
        with closing(lockstep(transformer, blocks, branches(transformer, latents, schedule[i : i + 1], cfg))) as work:
            while True:
                try:
                    next(work)
                except StopIteration as end:
                    velocity = guided(*end.value, 3.0) if cfg else end.value[0]
                    break
                blocks_run += 1
                if blocks_run == stop_after:
                    return latents
        latents = latents - 0.3 * velocity
    return latents


def write_lora(
    path: Path, transformer: torch.nn.Module, modules: tuple[str, ...] = EVERY_KIND, seed: int = 0, rank: int = 4
) -> Path:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name in modules:
        linear = transformer.get_submodule(name)
        up = torch.randn(linear.out_features, rank, generator=generator)
        down = torch.randn(rank, linear.in_features, generator=generator)
        tensors |= {f"{name}.lora_B.weight": up * 0.1, f"{name}.lora_A.weight": down * 0.1}
    save_file(tensors, path)
    return path


def digests(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.glob("*.safetensors"))}


class LaggingCopies:
    """A card on the CPU: copies are done by a thread of their own, late, in order; what runs too early reads garbage."""

    on_gpu = True

    def __init__(self, refuses: tuple[str, ...] = (), lag_s: float = 0.002) -> None:
        self.device = torch.device("cpu")
        self.refuses = refuses
        self.lag_s = lag_s
        self.locked_now: dict[int, str] = {}
        self._random = random.Random(0)
        self._queue: queue.SimpleQueue[tuple[Callable[[], None], threading.Event]] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            task, done = self._queue.get()
            time.sleep(self._random.random() * self.lag_s)
            task()
            done.set()

    def submit(self, task: Callable[[], None], after: Any) -> threading.Event:
        done = threading.Event()

        def run() -> None:
            if after is not None:
                assert after.wait(10)
            task()

        self._queue.put((run, done))
        return done

    def mark(self) -> threading.Event:
        """Return a mark that is reached: on the CPU, what was asked of the caller's own line is done."""
        reached = threading.Event()
        reached.set()
        return reached

    def wait(self, mark: Any) -> None:
        assert mark is None or mark.wait(10), "the copies have ended in an error"

    settle = wait

    def join(self, mark: Any) -> None: ...
    def adopt(self, tensor: Tensor) -> None: ...

    def register(self, data: Tensor, *, read_only: bool) -> str | None:
        kind = "registered" if read_only else "pinned"
        if kind in self.refuses:
            return "error 801"
        self.locked_now[data.data_ptr()] = kind
        return None

    def unregister(self, data: Tensor) -> None:
        del self.locked_now[data.data_ptr()]

    def locked(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)
