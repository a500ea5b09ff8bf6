"""Takes the pictures in docs/ui: the real app in Chromium, converting a sample, at desktop and phone width.

python -m tools.screenshots --out docs/ui
"""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from tests.app import ROOT, App, running
from tests.browser.test_ui import CHROMIUM, FLAGS

SAMPLE = ROOT / "ui" / "samples" / "pink_hair.webp"
SIZES = {"desktop": {"width": 1440, "height": 900}, "phone": {"width": 390, "height": 844}}


def shoot(page: Page, out: Path, name: str) -> None:
    page.wait_for_timeout(400)  # the slider's first move, fonts
    path = out / f"{name}.webp"
    with Image.open(io.BytesIO(page.screenshot(full_page=True))) as image:
        image.save(path, quality=88, method=6)
    print(path)


def tour(browser: Browser, app: App, out: Path, width: str, theme: str) -> None:
    """Walk the main path once in a browser of its own: empty, ready, running, done."""
    context = browser.new_context(viewport=SIZES[width], color_scheme=theme, has_touch=width == "phone")
    page = context.new_page()
    page.goto(app.url)
    page.locator("#rc-drop").wait_for()
    page.wait_for_timeout(1500)
    label = f"{width}-{theme}"
    shoot(page, out, f"empty-{label}")
    page.locator(".rc-file").set_input_files(SAMPLE)
    page.get_by_text("What the model sees").wait_for()
    shoot(page, out, f"ready-{label}")
    page.locator("#rc-convert").click()
    page.locator(r"text=/step ([6-9]|1\d)\//").locator("visible=true").first.wait_for(timeout=60_000)
    shoot(page, out, f"running-{label}")
    page.get_by_text("Download without stamp").wait_for(timeout=120_000)
    shoot(page, out, f"done-{label}")
    context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, running(Path(folder) / "data") as app, sync_playwright() as pw:
        browser = pw.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for width, theme in (("desktop", "light"), ("desktop", "dark"), ("phone", "light"), ("phone", "dark")):
            tour(browser, app, out, width, theme)
        browser.close()


if __name__ == "__main__":
    main()
