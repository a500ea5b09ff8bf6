"""The settings zone: native Gradio controls, which stay the only source of the values."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import gradio as gr

from realchar.presets import DEFAULT_PRESET, MAX_CFG, MAX_STEPS, NEGATIVE, PRESETS, PROMPTS
from ui import handlers
from ui.parts import part
from ui.texts import TEXTS as T

if TYPE_CHECKING:
    from realchar.service import Service


TILE_SIDES = (128, 256, 512, 1024)  # pixels

VERSION = """<div class="rc-version" hidden><img alt="" hidden><div><p class="rc-about" role="status"></p>
<p class="rc-warned" role="status" hidden></p></div></div><details class="rc-unusable" hidden><summary></summary><ul></ul></details>"""

Control = gr.Radio | gr.Dropdown | gr.Slider | gr.Number | gr.Textbox | gr.Checkbox


@dataclass(frozen=True)
class Controls:
    """The form. The order of the fields is the order in which the page's script gets the values."""

    preset: gr.Radio
    lora: gr.Dropdown
    strength: gr.Slider
    lora2: gr.Dropdown
    strength2: gr.Slider
    lora3: gr.Dropdown
    strength3: gr.Slider
    cfg: gr.Slider
    steps: gr.Slider
    seed: gr.Number
    size: gr.Radio
    prompt_set: gr.Radio
    prompt: gr.Textbox
    negative: gr.Textbox
    offload: gr.Radio
    vram: gr.Slider
    strategy: gr.Radio
    tile: gr.Dropdown
    stamp: gr.Checkbox

    def all(self) -> list[Control]:
        return [getattr(self, name) for name in names()]


def names() -> list[str]:
    return [field.name for field in fields(Controls)]


def build(service: Service) -> Controls:
    """Make the form, from top to bottom. `interactive` must be said: a control that is no event's input is read-only."""
    preset = PRESETS[DEFAULT_PRESET]
    titles = [(item.title, item.name) for item in PRESETS.values()] + [(T["set.custom"], "custom")]
    chips = gr.Radio(
        titles, value=preset.name, label=T["set.preset"], info=preset.tip, interactive=True, elem_id="rc-f-preset"
    )
    versions = _versions(service)
    cfg = _slider("cfg", 1, min(12, MAX_CFG), preset.cfg, 0.5)
    steps = _slider("steps", 1, min(50, MAX_STEPS), preset.steps, 1)
    seed = _seed()
    size = gr.Radio(
        handlers.size_choices(service),
        value=preset.size,
        label=T["set.size"],
        info=T["set.size.info"],
        interactive=True,
        elem_id="rc-f-size",
    )
    with gr.Accordion(T["set.prompts"], open=False, elem_id="rc-prompts"):
        prompts = _prompts()
    with gr.Accordion(T["set.memory"], open=False, elem_id="rc-memory"):
        memory = _memory(service)
    stamp = gr.Checkbox(True, label=T["set.stamp"], interactive=True, container=False, elem_id="rc-f-stamp")
    form = Controls(
        preset=chips, cfg=cfg, steps=steps, seed=seed, size=size, stamp=stamp, **versions, **prompts, **memory
    )
    _wire(form)
    return form


def _versions(service: Service) -> dict[str, Any]:
    """Make the controls of the LoRA version and of further ones."""
    lora = gr.Dropdown(
        handlers.weight_choices(service),
        value=handlers.default_weights(service),
        label=T["set.version"],
        info=T["set.version.info"],
        filterable=False,
        interactive=True,
        elem_id="rc-f-lora",
    )
    part("version", VERSION)
    strength = _slider("strength", 0, 2, 1, 0.05, interactive=lora.value != handlers.NO_LORA)
    made: dict[str, Any] = {"lora": lora, "strength": strength}
    with gr.Accordion(T["set.more"], open=False, elem_id="rc-more"):
        for i in (2, 3):
            made[f"lora{i}"], made[f"strength{i}"] = _one_more(service, i)
    return made


def _prompts() -> dict[str, Any]:
    """Make the controls of prompt and negative prompt."""
    prompt_set = gr.Radio(
        [(T["set.prompt.base"], "base"), (T["set.prompt.enhanced"], "enhanced"), (T["set.prompt.own"], "own")],
        value="base",
        label=T["set.prompt.set"],
        interactive=True,
        elem_id="rc-f-prompt_set",
    )
    negative = T["set.negative.info"]
    return {
        "prompt_set": prompt_set,
        "prompt": _text("prompt", PROMPTS["base"]),
        "negative": _text("negative", NEGATIVE, info=negative),
    }


def _one_more(service: Service, i: int) -> tuple[gr.Dropdown, gr.Slider]:
    """Make the controls of a further LoRA; it begins with none."""
    lora = gr.Dropdown(
        handlers.further_choices(service),
        value=handlers.NO_LORA,
        label=T["set.further"].format(i=i),
        filterable=False,
        interactive=True,
        elem_id=f"rc-f-lora{i}",
    )
    strength = gr.Slider(
        0, 2, 1, step=0.05, label=T["set.further.strength"].format(i=i), interactive=False, elem_id=f"rc-f-strength{i}"
    )
    return lora, strength


def _memory(service: Service) -> dict[str, Any]:
    """Make the controls of how this machine is used. Their first values mean: as the app is set."""
    card = handlers.on_gpu(service)
    offload = gr.Radio(
        handlers.offload_choices(service),
        value="auto",
        label=T["set.offload"],
        info=T["set.offload.info" if card else "set.offload.info.cpu"],
        interactive=True,
        elem_id="rc-f-offload",
    )
    vram = _slider("vram", 0, handlers.most_vram(service), 0, 0.5, interactive=card, info=handlers.vram_info(service))
    strategy = gr.Radio(
        handlers.strategy_choices(),
        value=service.settings.strategy.value,
        label=T["set.strategy"],
        info=T["set.strategy.info"],
        interactive=True,
        elem_id="rc-f-strategy",
    )
    tile = gr.Dropdown(
        [(T["set.tile.auto"], 0), *((T["set.tile.px"].format(px=side), side) for side in TILE_SIDES)],
        value=0,
        label=T["set.tile"],
        info=T["set.tile.info"],
        filterable=False,
        interactive=True,
        elem_id="rc-f-tile",
    )
    return {"offload": offload, "vram": vram, "strategy": strategy, "tile": tile}


def _slider(
    name: str, low: float, high: float, value: float, step: float, *, interactive: bool = True, info: str | None = None
) -> gr.Slider:
    return gr.Slider(
        low,
        high,
        value,
        step=step,
        label=T[f"set.{name}"],
        info=info or T.get(f"set.{name}.info"),
        interactive=interactive,
        elem_id=f"rc-f-{name}",
    )


def _text(name: str, value: str, info: str | None = None) -> gr.Textbox:
    return gr.Textbox(
        value, label=T[f"set.{name}"], info=info, lines=3, max_lines=8, interactive=True, elem_id=f"rc-f-{name}"
    )


def _seed() -> gr.Number:
    with gr.Row(elem_id="rc-seed"):
        seed = gr.Number(
            -1,
            precision=0,
            minimum=-1,
            label=T["set.seed"],
            info=T["set.seed.info"],
            interactive=True,
            elem_id="rc-f-seed",
        )
        drawn = gr.Button(T["set.seed.random"], size="sm", min_width=0)
        fresh = gr.Button(T["set.seed.new"], size="sm", min_width=0)
    drawn.click(None, None, seed, js="() => -1")
    fresh.click(None, None, seed, js="() => rc.newSeed()")
    return seed


def _wire(form: Controls) -> None:
    """Connect the controls in the browser only, so that none of it needs the server or a connection.

    The way back, from numbers to a preset and from a text to its set, hangs on `change`: `input` of a text field is not
    sent for a single paste.
    """
    numbers: list[gr.Slider | gr.Radio] = [form.cfg, form.steps, form.size]
    # A strategy is no part of what tells presets apart: it never changes the picture.
    set_by_preset = [*numbers, form.strategy]
    form.preset.input(None, [form.preset, *set_by_preset], set_by_preset, js="(...v) => rc.preset(v)")
    for number in numbers:
        number.change(None, numbers, form.preset, js="(...v) => rc.presetOf(v)")
    form.prompt_set.input(None, [form.prompt_set, form.prompt], form.prompt, js="(...v) => rc.promptOf(v)")
    form.prompt.change(None, form.prompt, form.prompt_set, js="(v) => rc.promptSetOf(v)")
    pairs = ((form.lora, form.strength), (form.lora2, form.strength2), (form.lora3, form.strength3))
    for lora, strength in pairs:
        lora.change(None, lora, strength, js="(v) => rc.strengthFor(v)")
    for control in form.all():
        control.change(None, form.all(), None, js="(...v) => rc.save(v)")
