"""Prompt embeddings, encoded once for a picture and a prompt."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Generator

import torch
from PIL import Image
from torch import Tensor

from realchar.engine.families.base import ModelFamily
from realchar.engine.work import ticking
from realchar.errors import ResultError
from realchar.schema import EditRequest, Event

CACHED_PROMPTS = 32


def prompts_of(request: EditRequest) -> list[str]:
    """Return the prompts to run: the negative one counts only where CFG does."""
    return [request.prompt, request.negative_prompt or " "] if request.cfg > 1 else [request.prompt]


class PromptCache:
    """The embeddings (1, L, D) of recent prompts; the key is the picture's pixels and the prompt."""

    def __init__(self, family: ModelFamily) -> None:
        self._family = family
        self._embeds: OrderedDict[tuple[str, str], Tensor] = OrderedDict()

    def clear(self) -> None:
        """Forget all."""
        self._embeds.clear()

    def embeds(self, picture: Image.Image, prompts: list[str]) -> Generator[Event, None, list[Tensor]]:
        """Return the embeddings of prompts as read beside a picture; yields while it encodes what is lacking.

        Raises ResultError where they are no numbers, and keeps none of those.
        """
        digest = hashlib.sha256(picture.tobytes() + repr(picture.size).encode()).hexdigest()
        lacking = [prompt for prompt in dict.fromkeys(prompts) if (digest, prompt) not in self._embeds]
        if lacking:
            embeds = yield from ticking(self._family.encode_prompts(picture, lacking))
            if not all(torch.isfinite(found).all() for found in embeds):
                raise ResultError(
                    "nan", "The prompt could not be read: numbers overflowed in the text encoder; try another prompt."
                )
            self._embeds.update({(digest, prompt): found for prompt, found in zip(lacking, embeds, strict=True)})
        for prompt in prompts:
            self._embeds.move_to_end((digest, prompt))
        found = [self._embeds[digest, prompt] for prompt in prompts]
        while len(self._embeds) > CACHED_PROMPTS:
            self._embeds.popitem(last=False)
        return found
