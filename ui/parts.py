"""Parts of the page that its own script fills."""

from __future__ import annotations

import gradio as gr


def part(name: str, markup: str) -> gr.HTML:
    """Place markup that `client.js` takes over under this name as soon as it is there."""
    return gr.HTML(
        markup, js_on_load=f"rc.mount('{name}', element)", apply_default_css=False, elem_id=f"rc-part-{name}"
    )
