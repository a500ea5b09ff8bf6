"""Qwen-Image-Edit-2511: its components over diffusers' and transformers' own classes, on one device.

Facts are those of `QwenImageEditPlusPipeline` (diffusers 0.42) and of the model's configs; a test holds the two equal.
The one difference that is meant: the reference is encoded at exactly the size of the output, never rescaled.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from logging import CRITICAL
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLQwenImage, FlowMatchEulerDiscreteScheduler, QwenImageTransformer2DModel
from diffusers.utils import logging as diffusers_logging
from PIL.Image import Image, Resampling
from safetensors import SafetensorError
from torch import Tensor
from transformers import Qwen2Tokenizer, Qwen2VLImageProcessorPil
from transformers.utils import logging as transformers_logging

from realchar.engine import attention, still_vae
from realchar.engine.blocks import Blocks, ResidentBlocks, stream_transformer
from realchar.engine.denoise import Branch, ImageShape, Wanted, lockstep
from realchar.engine.families.base import Reference
from realchar.engine.lora import AdapterSet
from realchar.engine.offload import MovedBlocks, Turns, leaf_transformer, offload_leaves
from realchar.engine.text_encoder import Prompt, TextEncoder
from realchar.engine.tiling import Tile
from realchar.engine.weights import WeightSource
from realchar.errors import ModelError
from realchar.headers import check_headers
from realchar.settings import AS_IT_IS, Attention, HostMemory, Offload, Speed

TEMPLATE = (
    "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, objects, "
    "background), then explain how the user's text instruction should alter or modify the image. Generate a new image "
    "that meets the user's requirements while maintaining consistency with the original input where appropriate."
    "<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
TEMPLATE_TOKENS = 64  # the system part, dropped from the embeddings
IMAGE_PAD = "<|image_pad|>"
PICTURE = f"Picture 1: <|vision_start|>{IMAGE_PAD}<|vision_end|>"
CONDITION_AREA = 384 * 384  # pixels of the picture that the text encoder looks at
CONDITION_MULTIPLE = 32
PATCH = 2  # latents of a token's side
LATENT = 8  # pixels of a latent's side
CPU = torch.device("cpu")


class QwenImageEdit:
    """Components of one base on `device`; the transformer's blocks may be streamed to it.

    bfloat16 on a GPU, float32 on the CPU.
    """

    def __init__(
        self,
        transformer: QwenImageTransformer2DModel,
        vae: AutoencoderKLQwenImage,
        text_encoder: TextEncoder,
        tokenizer: Qwen2Tokenizer,
        image_processor: Qwen2VLImageProcessorPil,
        scheduler_config: dict[str, object],
        blocks: Blocks,
        turns: Turns | None = None,
    ) -> None:
        """`turns` moves what is not always on the device; None: everything is where the transformer is."""
        self.transformer = transformer.eval().requires_grad_(False)
        self.vae = vae.eval().requires_grad_(False)
        self.text_encoder = text_encoder
        self.tokenizer = tokenizer
        self.image_processor = image_processor
        self.scheduler_config = scheduler_config
        self.blocks = blocks
        self._turns = turns or Turns(transformer.device)
        self.device: torch.device = self._turns.device
        self.adapters = AdapterSet(transformer, blocks, self.device)
        self.dtype: torch.dtype = transformer.dtype
        self.attention = Attention.SDPA
        shape = (1, -1, 1, 1, 1)
        self._mean = torch.tensor(vae.config.latents_mean, device=self.device, dtype=self.dtype).view(shape)
        self._std = torch.tensor(vae.config.latents_std, device=self.device, dtype=self.dtype).view(shape)

    @classmethod
    def load(
        cls,
        folder: Path,
        device: torch.device,
        dtype: torch.dtype,
        offload: Offload = Offload.RESIDENT,
        resident_blocks: int = 0,
        speed: Speed = AS_IT_IS,
        host_memory: HostMemory = HostMemory.AUTO,
    ) -> QwenImageEdit:
        """Read a diffusers folder; never asks the network. Raises ModelError when it can't be read.

        With "stream" the text encoder's layers and the transformer's blocks stay in their files, but for
        `resident_blocks` of these; with "model" the components come to the device in turn, with "sequential" layer by
        layer, the VAE as a whole.
        """
        check_headers(folder)
        _quiet_libraries()
        turns = Turns(device)
        blocks: Blocks
        home = CPU if offload.needs_card else device
        try:
            if offload is Offload.STREAM:
                transformer, blocks = stream_transformer(
                    folder / "transformer",
                    device,
                    dtype,
                    resident=resident_blocks,
                    speed=speed,
                    host_memory=host_memory,
                )
            else:
                transformer, blocks = _transformer(folder / "transformer", dtype, offload, turns, speed)
            vae = AutoencoderKLQwenImage.from_pretrained(folder / "vae", torch_dtype=dtype, local_files_only=True)
            text_encoder = TextEncoder.load(
                folder / "text_encoder", home, dtype, streamed=offload is Offload.STREAM, host_memory=host_memory
            )
            tokenizer = Qwen2Tokenizer.from_pretrained(folder / "tokenizer", local_files_only=True)
            image_processor = Qwen2VLImageProcessorPil.from_pretrained(folder / "processor", local_files_only=True)
            config = FlowMatchEulerDiscreteScheduler.load_config(folder / "scheduler", local_files_only=True)
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ModelError(
                "base_damaged",
                f"Base {str(folder)!r} can't be read ({first}); copy the folder again.",
                path=str(folder),
            ) from error
        for part, model in (("transformer", transformer), ("vae", vae), ("text_encoder", text_encoder.model)):
            if (part, offload) == ("transformer", Offload.SEQUENTIAL):
                continue  # its weights are in their files
            if lacking := [name for name, parameter in model.named_parameters() if parameter.is_meta]:
                raise ModelError(
                    "base_damaged",
                    f"Base {str(folder)!r} lacks {lacking[0]!r}; copy the folder again.",
                    path=str(folder),
                )
            _place(part, model, offload, turns)
        return cls(transformer, vae, text_encoder, tokenizer, image_processor, dict(config), blocks, turns)

    def attend(self, wanted: Attention, tokens: int) -> None:
        """Choose the attention backend for so many tokens, or raise InvalidInput where the one asked for can't run."""
        config = self.transformer.config
        shape = attention.Shape(tokens, config.num_attention_heads, config.attention_head_dim)
        self.attention = attention.settle(wanted, shape, self.device, self.dtype)
        attention.use(self.attention, self.transformer.transformer_blocks)

    @property
    def num_blocks(self) -> int:
        return len(self.transformer.transformer_blocks)

    def encode_prompts(self, picture: Image, prompts: Sequence[str]) -> Generator[None, None, list[Tensor]]:
        """Return the embeddings (1, L, joint_attention_dim) of prompts as read beside the picture; yields in between."""
        self._turns.onload("text_encoder")
        vision = self.image_processor(images=[_condition(picture)], return_tensors="pt")
        grid = vision["image_grid_thw"]
        num_pads = int(grid[0].prod()) // self.image_processor.merge_size**2
        pad = self.tokenizer.convert_tokens_to_ids(IMAGE_PAD)
        inputs = []
        for prompt in prompts:
            text = TEMPLATE.format(PICTURE.replace(IMAGE_PAD, IMAGE_PAD * num_pads) + prompt)
            ids = self.tokenizer(text, return_tensors="pt")["input_ids"].to(self.device)
            inputs.append(Prompt(ids, (ids == pad).int()))
        pixel_values = vision["pixel_values"].to(self.device, self.dtype)
        states = yield from self.text_encoder.encode(pixel_values, grid.to(self.device), inputs)
        return [state[:, TEMPLATE_TOKENS:].to(self.dtype) for state in states]

    @property
    def halo(self) -> int:
        """Return how many latents the VAE's tiles read beyond their edges, at most."""
        encoder = still_vae.encoder_reach(self.vae)
        pixels = max(still_vae.decoder_reach(self.vae).after * LATENT, *encoder)
        return math.ceil(pixels / LATENT)

    def encode_image(self, picture: Image, tile: Tile | None = None) -> Reference:
        """Encode a picture whose sides are multiples of 16 at its own size."""
        self._turns.onload("vae")
        array = np.asarray(picture, dtype=np.float32) / 255.0
        pixels = torch.from_numpy(array).permute(2, 0, 1)[None] * 2.0 - 1.0
        pixels = pixels.to(self.device, self.dtype)
        with still_vae.planar():
            mode = still_vae.encode(self.vae, pixels, tile)[0][:, :, None]
        latents = (mode - self._mean) / self._std
        rows, columns = latents.shape[-2] // PATCH, latents.shape[-1] // PATCH
        return Reference(pack(latents), latents[:, :, 0], pixels, (1, rows, columns))

    def scheduler(self, steps: int, num_tokens: int) -> FlowMatchEulerDiscreteScheduler:
        """Return a scheduler of its own for one run of `steps` steps on `num_tokens` noise tokens."""
        scheduler = FlowMatchEulerDiscreteScheduler.from_config(self.scheduler_config)
        config = scheduler.config
        slope = (config.max_shift - config.base_shift) / (config.max_image_seq_len - config.base_image_seq_len)
        mu = config.base_shift + slope * (num_tokens - config.base_image_seq_len)
        sigmas = np.linspace(1.0, 1 / steps, steps)
        if steps == 1:  # stretching a schedule of one step to its terminal value is 0 / 0
            scheduler.register_to_config(shift_terminal=None)
        scheduler.set_timesteps(sigmas=sigmas.tolist(), mu=mu, device=self.device)
        scheduler.set_begin_index(0)
        return scheduler

    def noise(self, shape: ImageShape, seed: int) -> Tensor:
        """Return the packed noise (1, T, in_channels), drawn on the CPU in float32: a seed means the same everywhere."""
        _, rows, columns = shape
        size = (1, self.vae.config.z_dim, 1, rows * PATCH, columns * PATCH)
        generator = torch.Generator().manual_seed(seed)
        return pack(torch.randn(size, generator=generator)).to(self.device, self.dtype)

    def velocities(
        self, branches: list[Branch], wanted: Wanted = lambda _: True
    ) -> Generator[None, None, list[Tensor | None]]:
        """As `denoise.lockstep`."""
        self._turns.onload("transformer")
        return lockstep(self.transformer, self.blocks, branches, wanted)

    def unpack(self, tokens: Tensor, shape: ImageShape) -> Tensor:
        """Return packed tokens (1, T, C) as latents (1, C / 4, rows * 2, columns * 2), still normalised."""
        return unpack(tokens, shape)

    def decode(self, latents: Tensor, tile: Tile | None = None) -> Tensor:
        """Decode normalised latents (1, C, h, w) to pixels (1, 3, 8 h, 8 w) in -1…1."""
        self._turns.onload("vae")
        raw = latents.to(self.dtype) * self._std[:, :, 0] + self._mean[:, :, 0]
        with still_vae.planar():
            return still_vae.decode(self.vae, raw, tile).clamp(-1, 1)

    def rest(self) -> None:
        """Leave on the device only what stays there between runs."""
        self._turns.offload()


def _quiet_libraries() -> None:
    """Leave it to our own events how loading goes, and to our own sentences what is wrong."""
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity(CRITICAL)
    diffusers_logging.set_verbosity(CRITICAL)


def _transformer(
    folder: Path, dtype: torch.dtype, offload: Offload, turns: Turns, speed: Speed
) -> tuple[QwenImageTransformer2DModel, Blocks]:
    if offload is Offload.SEQUENTIAL:
        return leaf_transformer(folder, turns.device, dtype)
    transformer = QwenImageTransformer2DModel.from_pretrained(folder, torch_dtype=dtype, local_files_only=True)
    source = WeightSource(folder)
    if offload is Offload.MODEL:
        return transformer, MovedBlocks(transformer, source, turns)
    return transformer, ResidentBlocks(transformer, source, compiled=speed.compiled)


def _place(part: str, model: torch.nn.Module, offload: Offload, turns: Turns) -> None:
    """Put a loaded component where its mode has it; of a streamed one nothing moves."""
    if offload is Offload.MODEL or (part, offload) == ("vae", Offload.SEQUENTIAL):
        # Not layer by layer: the VAE's convolutions are run by functions of our own, which such hooks would pass over.
        turns.add(part, model)
    elif offload is Offload.SEQUENTIAL:
        offload_leaves(model, turns.device)
    else:
        model.to(turns.device)


def pack(latents: Tensor) -> Tensor:
    """Return latents (N, C, 1, h, w) as tokens of 2 x 2 latents: (N, h / 2 * w / 2, C * 4)."""
    n, channels, _, height, width = latents.shape
    tokens = latents.reshape(n, channels, height // PATCH, PATCH, width // PATCH, PATCH).permute(0, 2, 4, 1, 3, 5)
    return tokens.reshape(n, (height // PATCH) * (width // PATCH), channels * PATCH * PATCH)


def unpack(tokens: Tensor, shape: ImageShape) -> Tensor:
    """Return tokens (N, T, C) as latents (N, C / 4, rows * 2, columns * 2)."""
    _, rows, columns = shape
    latents = tokens.view(len(tokens), rows, columns, -1, PATCH, PATCH).permute(0, 3, 1, 4, 2, 5)
    return latents.reshape(len(tokens), -1, rows * PATCH, columns * PATCH)


def _condition(picture: Image) -> Image:
    """Return the picture at about 384² pixels, sides to multiples of 32, as the text encoder sees it."""
    ratio = picture.width / picture.height
    width = math.sqrt(CONDITION_AREA * ratio)
    sides = [max(1, round(side / CONDITION_MULTIPLE)) * CONDITION_MULTIPLE for side in (width, width / ratio)]
    return picture.resize((sides[0], sides[1]), Resampling.LANCZOS)
