"""Gradio's theme from the project's tokens: stone neutrals, one teal accent, system fonts, nothing fetched."""

from __future__ import annotations

import gradio as gr

SANS = [
    "ui-sans-serif",
    "system-ui",
    "-apple-system",
    "Segoe UI",
    "PingFang SC",
    "Hiragino Sans GB",
    "Microsoft YaHei",
    "Noto Sans CJK SC",
    "sans-serif",
]
MONO = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"]
TEAL = (
    "#eefaf8", "#d3f2ec", "#a8e4da", "#74cfc1", "#3fb3a4", "#1f978a",
    "#0f766e", "#115e59", "#134e4a", "#113f3c", "#062827",
)  # fmt: skip
# Token: (light, dark).
TOKENS = {
    "body_background_fill": ("#f6f5f3", "#161514"),
    "block_background_fill": ("#ffffff", "#201f1d"),
    "background_fill_primary": ("#ffffff", "#201f1d"),
    "background_fill_secondary": ("#f3f2f0", "#2b2927"),
    "block_shadow": ("none", "none"),
    "block_border_color": ("transparent", "transparent"),
    "border_color_primary": ("#d6d3d1", "#44403c"),
    "body_text_color": ("#1c1917", "#ece9e4"),
    "body_text_color_subdued": ("#57534e", "#b6b0a8"),
    "block_label_text_color": ("#44403c", "#d6d1c9"),
    "block_title_text_color": ("#292524", "#ece9e4"),
    "block_info_text_color": ("#57534e", "#b6b0a8"),
    "input_background_fill": ("#f3f2f0", "#2b2927"),
    "input_background_fill_focus": ("#ffffff", "#2b2927"),
    "input_border_color": ("#78716c", "#8a837b"),
    "input_border_color_focus": ("#0f766e", "#74cfc1"),
    "input_placeholder_color": ("#6f6962", "#a39c92"),
    "slider_color": ("#0f766e", "#3fb3a4"),
    "button_primary_background_fill": ("#0f766e", "#0f766e"),
    "button_primary_background_fill_hover": ("#115e59", "#115e59"),
    "button_primary_text_color": ("#ffffff", "#ffffff"),
    "button_primary_border_color": ("#0f766e", "#3fb3a4"),
    "button_secondary_background_fill": ("#ffffff", "#2b2927"),
    "button_secondary_background_fill_hover": ("#f3f2f0", "#3a3734"),
    "button_secondary_text_color": ("#1c1917", "#ece9e4"),
    "button_secondary_border_color": ("#78716c", "#8a837b"),
    "checkbox_background_color": ("#ffffff", "#2b2927"),
    "checkbox_background_color_selected": ("#0f766e", "#0f766e"),
    "checkbox_border_color": ("#78716c", "#8a837b"),
    "checkbox_border_color_selected": ("#0f766e", "#3fb3a4"),
    "checkbox_label_background_fill": ("#ffffff", "#2b2927"),
    "checkbox_label_background_fill_hover": ("#f3f2f0", "#3a3734"),
    "checkbox_label_background_fill_selected": ("#0f766e", "#0f766e"),
    "checkbox_label_text_color": ("#1c1917", "#ece9e4"),
    "checkbox_label_text_color_selected": ("#ffffff", "#ffffff"),
    "checkbox_label_border_color": ("#78716c", "#8a837b"),
    "checkbox_label_border_color_selected": ("#0f766e", "#3fb3a4"),
}


def build() -> gr.themes.Base:
    theme = gr.themes.Base(
        primary_hue=gr.themes.Color(*TEAL, name="rc"),
        neutral_hue="stone",
        font=SANS,
        font_mono=MONO,
        radius_size="md",
        spacing_size="md",
        text_size="md",
    )
    both = {
        f"{name}{end}": value for name, pair in TOKENS.items() for end, value in zip(("", "_dark"), pair, strict=True)
    }
    return theme.set(block_border_width="0px", input_border_width="1px", color_accent="#0f766e", **both)
