"""The text encoder in lockstep: each layer runs for every prompt before the next layer, whether resident or streamed.

Prompts beside one picture share what the vision blocks make of it. Streamed, one pass through two slots serves the whole
request, and nothing of it stays on the device but the few weights that are no layer; rows of the token embedding are read
from the mapped file. What stands before the layers (positions, masks, the picture's place in the prompt) is computed by
the model's own forward, which is given one layer that keeps its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLModel

from realchar.engine.accelerator import Accelerator, accelerator_of
from realchar.engine.groups import load_remaining, take_over
from realchar.engine.residency import HostWeights
from realchar.engine.stream import BlockStream
from realchar.engine.weights import WeightSource
from realchar.errors import ModelError
from realchar.settings import HostMemory

VISION, LANGUAGE = "visual.", "language_model."
EMBEDDING = "language_model.embed_tokens.weight"
HEAD = "lm_head.weight"
# How files name what the model calls `visual.…` and `language_model.…`: as of transformers 4, and as of later ones.
STORED = {VISION: ("visual.", "model.visual."), LANGUAGE: ("model.", "model.language_model.")}


@dataclass(frozen=True)
class Prompt:
    """One prompt: token ids, and 1 where a token stands for a part of the picture; both (1, L)."""

    ids: Tensor
    marks: Tensor


class Layers(Protocol):
    """Vision blocks, then language layers, each ready to run until the next is asked for."""

    def step(self) -> Generator[nn.Module, None, None]: ...


class ResidentLayers:
    """All layers lie on the device."""

    def __init__(self, model: Qwen2_5_VLModel) -> None:
        self._layers = [*model.visual.blocks, *model.language_model.layers]

    def step(self) -> Generator[nn.Module, None, None]:
        yield from self._layers


class StreamedLayers:
    """Layers pass through slots, which are there during a pass only."""

    def __init__(self, model: Qwen2_5_VLModel, host: HostWeights, dtype: torch.dtype, slots: int = 2) -> None:
        """Take over a model on the meta device. Raises ModelError."""
        nothing = torch.empty(0, device=host.accelerator.device, dtype=dtype)
        stored = _stored_names(host.source)
        shape = model.language_model.embed_tokens.weight.shape
        model.language_model.embed_tokens = MappedEmbedding(host.source, stored(EMBEDDING), shape, nothing)
        self._host, self._dtype, self._slots = host, dtype, slots
        self._groups = []
        for prefix, layers in (
            (f"{VISION}blocks", model.visual.blocks),
            (f"{LANGUAGE}layers", model.language_model.layers),
        ):
            for i, layer in enumerate(layers):
                names = {name: stored(f"{prefix}.{i}.{name}") for name, _ in layer.named_parameters()}
                self._groups.append(take_over(layer, names, nothing, host.source))
        load_remaining(model, host, dtype, stored)
        for owner, name in ((model.visual, "rotary_pos_emb"), (model.language_model, "rotary_emb")):
            rope = getattr(owner, name)  # its frequencies are no weights: made anew where the meta device has them
            setattr(owner, name, type(rope)(rope.config).to(host.accelerator.device))

    def step(self) -> Generator[nn.Module, None, None]:
        stream = BlockStream(
            self._groups, self._host, self._dtype, slots=self._slots, cyclic=False, what="text encoder's layer"
        )
        with closing(stream.step()) as step:
            yield from step


class MappedEmbedding(nn.Module):
    """An embedding whose rows are read from the file: a prompt needs a few hundred of its hundreds of thousands."""

    def __init__(self, source: WeightSource, name: str, shape: torch.Size, like: Tensor) -> None:
        """Read `name`, of `shape`, from a source, to the device and dtype of `like`. Raises ModelError."""
        super().__init__()
        self._source, self._name, self._like = source, name, like
        source.entry(name, tuple(shape))

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows (…, D) of ids (…), on the device and in the dtype that the model runs in."""
        rows = self._source.view(self._name).index_select(0, ids.flatten().cpu())
        return rows.view(*ids.shape, -1).to(self._like.device, self._like.dtype)


class TextEncoder:
    """A Qwen2.5-VL without its head, which no embedding needs."""

    def __init__(self, model: Qwen2_5_VLModel, layers: Layers) -> None:
        self.model = model.eval().requires_grad_(False)
        self._layers = layers

    @classmethod
    def load(
        cls,
        folder: Path,
        device: torch.device,
        dtype: torch.dtype,
        *,
        streamed: bool = False,
        host_memory: HostMemory = HostMemory.AUTO,
        accelerator: Accelerator | None = None,
    ) -> TextEncoder:
        """Read the encoder's folder. Raises ModelError where a streamed weight is amiss, and what transformers raises."""
        config = Qwen2_5_VLConfig.from_pretrained(folder, local_files_only=True)
        if len(kinds := set(config.text_config.layer_types)) > 1:
            raise ModelError(
                "text_encoder_kind",
                f"The text encoder in {str(folder)!r} mixes layers of {' and '.join(sorted(kinds))}, but all must be "
                "alike; take the base's own.",
                path=str(folder),
            )
        if not streamed:
            whole, found = Qwen2_5_VLForConditionalGeneration.from_pretrained(
                folder, dtype=dtype, local_files_only=True, output_loading_info=True
            )
            if lacking := sorted(found["missing_keys"] - {HEAD}):  # which the class would fill with random numbers
                raise WeightSource(folder).damaged(ValueError(f"{lacking[0]!r} is missing"))
            return cls(whole.model.to(device), ResidentLayers(whole.model))
        with torch.device("meta"):
            model = Qwen2_5_VLModel._from_config(config, dtype=dtype)
        host = HostWeights(WeightSource(folder), accelerator or accelerator_of(device), host_memory=host_memory)
        return cls(model, StreamedLayers(model, host, dtype))

    def encode(
        self, pixel_values: Tensor, grid: Tensor, prompts: Sequence[Prompt]
    ) -> Generator[None, None, list[Tensor]]:
        """Return the last hidden state (1, L, D) of each prompt beside the same picture; yields after each layer.

        pixel_values (patches, C) and grid (1, 3): as the image processor gives them.
        """
        language = self.model.language_model
        with closing(self._layers.step()) as layers:
            picture = self._see(pixel_values, grid, layers)
            yield
            inputs = [self._before_layers(prompt, grid, picture) for prompt in prompts]
            states = [given.hidden_states for given in inputs]
            for layer in layers:
                states = [layer(state, **given.others) for state, given in zip(states, inputs, strict=True)]
                yield
        return [language.norm(state) for state in states]

    def _see(self, pixel_values: Tensor, grid: Tensor, layers: Iterator[nn.Module]) -> Any:
        """Run the vision blocks, the first of `layers`, and what follows them."""
        blocks = self.model.visual.blocks
        with _in_place_of(self.model.visual, "blocks", _Iterated(islice(layers, len(blocks)))):
            return self.model.get_image_features(pixel_values, grid, return_dict=True)

    def _before_layers(self, prompt: Prompt, grid: Tensor, picture: Any) -> _Entry:
        entry = _Entry()
        with _in_place_of(self.model.language_model, "layers", nn.ModuleList([entry])):
            self.model(
                input_ids=prompt.ids,
                attention_mask=torch.ones_like(prompt.ids),
                image_grid_thw=grid,
                mm_token_type_ids=prompt.marks,
                mm_encoder_outputs={"image": picture},
                use_cache=False,
            )
        return entry


class _Entry(nn.Module):
    """In place of all language layers: keeps what each of them is given besides the hidden states, which are alike."""

    hidden_states: Tensor

    def forward(self, hidden_states: Tensor, **others: Any) -> Tensor:
        self.hidden_states, self.others = hidden_states, others
        return hidden_states


class _Iterated(nn.Module):
    """In place of a list of modules: gives them as they come."""

    def __init__(self, modules: Iterator[nn.Module]) -> None:
        super().__init__()
        self._modules_to_come = modules

    def __iter__(self) -> Iterator[nn.Module]:
        return self._modules_to_come


@contextmanager
def _in_place_of(owner: nn.Module, name: str, module: nn.Module) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, module)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _stored_names(source: WeightSource) -> Callable[[str], str]:
    """Return the function from the model's names to those of the files, by what the files hold."""
    found = {}
    for own, candidates in STORED.items():
        fitting = [prefix for prefix in reversed(candidates) if any(name.startswith(prefix) for name in source.entries)]
        found[own] = fitting[0] if fitting else candidates[0]

    def stored(name: str) -> str:
        own = next(prefix for prefix in STORED if name.startswith(prefix))
        return found[own] + name.removeprefix(own)

    return stored
