"""The page: three zones and the strip of jobs. Layout only; what lives in the parts is in `static/client.js`."""

from __future__ import annotations

from hashlib import sha256
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr

from ui import controls, handlers
from ui.parts import part
from ui.texts import TEXTS

if TYPE_CHECKING:
    from realchar.service import Service

STATIC = Path(__file__).parent / "static"
SAMPLES = Path(__file__).parent / "samples"
T = {key: escape(text) for key, text in TEXTS.items()}


def build(service: Service) -> gr.Blocks:
    page = gr.Blocks(title="RealCharacters", analytics_enabled=False, fill_width=True)
    with page:
        part("header", HEADER)
        with gr.Row(elem_id="rc-zones"):
            with gr.Column(elem_id="rc-zone-picture"):
                part("drop", DROP)
                with gr.Column(elem_id="rc-go"):
                    convert = gr.Button(TEXTS["go.convert"], variant="primary", size="lg", elem_id="rc-convert")
                    part("go", GO)
            with gr.Column(elem_id="rc-zone-result"):
                part("stage", STAGE)
            with gr.Column(elem_id="rc-zone-settings"):
                part("settings", SETTINGS)
                with gr.Column(elem_id="rc-settings"):
                    form = controls.build(service)
            with gr.Column(elem_id="rc-zone-jobs"):
                part("jobs", JOBS)
        refresh = gr.Button("refresh", elem_id="rc-refresh", elem_classes="rc-hidden")
        apply = gr.Button("apply", elem_id="rc-apply", elem_classes="rc-hidden")

        values = form.all()
        convert.click(None, values, None, js="(...v) => rc.convert(v)")
        apply.click(None, values, values, js="(...v) => rc.applied(v)")

        def choices() -> tuple[Any, ...]:
            further = gr.update(choices=handlers.further_choices(service))
            return gr.update(choices=handlers.weight_choices(service)), further, further

        quick: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
        listed = [form.lora, form.lora2, form.lora3]
        refresh.click(choices, None, listed, **quick)
        # The listing first, then the kept form: its version is set only when it is in the listing.
        page.load(choices, None, listed, **quick).then(None, values, values, js="(...v) => rc.opened(v)")
    return page


def head(service: Service) -> str:
    """Return what goes before everything else in the page's head: tokens, data, the page's own script and style."""
    data = handlers.script_json(handlers.boot(service, SAMPLES, controls.names()))
    return (
        f"<script>window.rcBoot={data};{EARLY}</script>"
        f'<link rel="icon" type="image/svg+xml" href="{_asset("favicon.svg")}">'
        f'<link rel="stylesheet" href="{_asset("client.css")}">'
        f'<script defer src="{_asset("client.js")}"></script>'
    )


def _asset(name: str) -> str:
    return f"/rc/{name}?v={sha256((STATIC / name).read_bytes()).hexdigest()[:12]}"


# Before the first paint: the ground of the chosen theme, so that a dark page does not flash white.
EARLY = (
    "(()=>{let t=null;try{t=JSON.parse(localStorage.getItem('rc_theme'))}catch{}"
    "const d=t==='dark'||(t!=='light'&&matchMedia('(prefers-color-scheme: dark)').matches);"
    "document.documentElement.style.background=d?'#161514':'#f6f5f3';"
    "document.documentElement.style.colorScheme=d?'dark':'light'})();"
)

HEADER = f"""<a class="rc-skip" href="#rc-drop">{T["nav.skip"]}</a>
<div class="rc-header"><div><h1>RealCharacters</h1><p class="rc-tagline">{T["app.tagline"]}</p></div>
<div class="rc-tools"><span class="rc-chip" role="status"><i></i><span class="rc-wide"></span><span class="rc-narrow"></span></span>
<button type="button" class="rc-icon rc-theme"></button></div></div>
<div class="rc-banner" hidden><p></p><button type="button" class="rc-icon" aria-label="{T["banner.close"]}"></button></div>
<div class="rc-banner rc-updated" hidden><p>{T["app.updated"]}</p>
<button type="button" class="rc-button">{T["app.reload"]}</button></div>"""

DROP = f"""<section aria-labelledby="rc-h-picture"><h2 id="rc-h-picture">{T["zone.picture"]}</h2>
<div id="rc-drop" class="rc-drop" role="button" tabindex="0" aria-describedby="rc-kinds"><span class="rc-drop-icon"></span>
<b class="rc-wide">{T["drop.idle"]}</b><b class="rc-narrow">{T["drop.phone"]}</b><small id="rc-kinds"></small></div>
<input class="rc-file" type="file" accept="image/*,.tif,.tiff,.heic" hidden aria-label="{T["drop.input"]}">
<div class="rc-upload" hidden><span role="status"></span><div class="rc-bar"><i></i></div>
<button type="button" class="rc-button">{T["drop.stop"]}</button></div>
<p class="rc-error" role="alert" hidden></p><p class="rc-note" role="status" hidden></p>
<div class="rc-card" hidden></div><div class="rc-examples" hidden><h3>{T["drop.examples"]}</h3><ul></ul></div></section>"""

GO = f"""<p class="rc-error" role="alert" hidden></p><p class="rc-hint">{T["go.hint"]}</p>
<div class="rc-mini" hidden><span></span><button type="button" class="rc-button">{T["run.cancel"]}</button></div>"""

STAGE = f"""<section aria-labelledby="rc-h-result"><h2 id="rc-h-result">{T["zone.result"]}</h2>
<div class="rc-box" data-view="empty"><div class="rc-empty"><span></span><p>{T["res.empty"]}</p></div>
<img class="rc-shown" alt="" hidden><div class="rc-compare" hidden><img class="rc-a" alt=""><img class="rc-b" alt="">
<span class="rc-tag rc-tag-a">{T["res.before"]}</span><span class="rc-tag rc-tag-b">{T["res.after"]}</span>
<input type="range" min="0" max="100" value="50" step="1" aria-label="{T["res.slider"]}"><div class="rc-divider"><i></i></div>
</div><p class="rc-veil" hidden></p></div>
<div class="rc-run" hidden><div class="rc-row"><b class="rc-stage"></b><span class="rc-step"></span><span class="rc-time"></span>
</div><div class="rc-bar" role="progressbar" aria-label="{T["run.progress"]}" aria-valuemin="0"><i></i></div>
<div class="rc-row rc-quiet"><span class="rc-memory"></span><svg viewBox="0 0 120 24" aria-hidden="true"><polyline/></svg>
<span class="rc-plan"></span></div><div class="rc-run-buttons"><button type="button" class="rc-button rc-switch" hidden></button>
<button type="button" class="rc-button rc-cancel">{T["run.cancel"]}</button></div>
<ul class="rc-degraded"></ul></div>
<p class="rc-error" role="alert" hidden></p>
<div class="rc-actions" hidden><a class="rc-button rc-primary rc-stamped" download>{T["res.stamped"]}</a>
<a class="rc-button rc-clean" download>{T["res.clean"]}</a>
<button type="button" class="rc-button rc-full">{T["res.full"]}</button>
<button type="button" class="rc-button rc-again"></button></div><p class="rc-facts"></p>
<div class="rc-sr rc-live" role="status" aria-live="polite"></div><p class="rc-toast" role="status" hidden></p></section>"""

SETTINGS = f"""<h2><button type="button" class="rc-fold" aria-expanded="false" aria-controls="rc-settings">
{T["zone.settings"]}</button><span class="rc-wide">{T["zone.settings"]}</span></h2>"""

JOBS = f"""<section aria-labelledby="rc-h-jobs"><h2 id="rc-h-jobs">{T["zone.jobs"]}</h2>
<p class="rc-quiet">{T["jobs.empty"]}</p><ul></ul></section>"""
