"""The page in a real browser, over the scripted service; the last test drives the real one with the demo base.

A proxy of Chromium's own is never used and every request is recorded, so that a test fails when the page asks another
host or when the console shows an error.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from PIL import Image, ImageDraw, PngImagePlugin

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from playwright.sync_api import Browser, BrowserContext, Page, expect  # noqa: E402

from realchar.presets import PROMPTS  # noqa: E402
from realchar.results import read_params  # noqa: E402
from tests.app import ROOT, free_port  # noqa: E402

# A browser on a busy machine may miss a moment; what fails twice is a fault, and reruns are counted in the last line.
pytestmark = [pytest.mark.browser, pytest.mark.flaky(reruns=1)]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DEMO = ROOT / "weights" / "demo"
DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}


@contextlib.contextmanager
def serving(*command: str, port: int, log: Path) -> Iterator[str]:
    with log.open("ab") as out:
        process = subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2) as answer:
                if answer.status == 200:
                    break
            assert process.poll() is None, log.read_text(encoding="utf-8")
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        try:
            assert process.wait(8) == 0, log.read_text(encoding="utf-8")
        finally:
            process.kill()


@contextlib.contextmanager
def fake_app(folder: Path, port: int, step_s: float = 0.12, card_gb: float = 0.0) -> Iterator[str]:
    numbers = map(str, (step_s, 0, card_gb))
    with serving("tests.fakes", str(port), str(folder / "data"), *numbers, port=port, log=folder / "log") as url:
        yield url


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with fake_app(tmp_path_factory.mktemp("app"), free_port()) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield found
        found.close()


class Seen:
    """What a page asked for and complained about."""

    def __init__(self, context: BrowserContext) -> None:
        self.hosts: set[str] = set()
        self.errors: list[str] = []
        context.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))
        context.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        context.on("weberror", lambda error: self.errors.append(str(error.error)))


@pytest.fixture
def open_page(browser: Browser, url: str) -> Iterator[Any]:
    contexts: list[tuple[BrowserContext, Seen]] = []

    def start(size: dict[str, int] = DESKTOP, path: str = "", **options: Any) -> Page:
        context = browser.new_context(viewport=size, **options)
        contexts.append((context, Seen(context)))
        page = context.new_page()
        load(page, url + path)
        return page

    yield start
    for context, seen in contexts:
        context.close()
        assert seen.hosts - {""} <= {urlsplit(url).netloc}
        assert seen.errors == []


def load(page: Page, url: str) -> None:
    page.goto(url)
    page.wait_for_selector("#rc-drop, .rc-card:not([hidden])")
    page.wait_for_function("window.rc && rc.state.opened")
    expect(page.locator(".rc-chip")).to_have_attribute("data-state", re.compile("ready|loading"))
    page.wait_for_timeout(400)  # Gradio's own first events


def write_prompt(page: Page, text: str) -> None:
    page.get_by_role("button", name="Prompt").click()
    field = page.get_by_label("Prompt", exact=True)
    field.wait_for()
    page.wait_for_timeout(300)  # Gradio sets a field's first value just after it has shown it
    field.fill(text)
    expect(field).to_have_value(text)


def art(size: tuple[int, int] = (900, 1200), **text: str) -> bytes:
    image = Image.new("RGB", size, "#8c7aa3")
    draw = ImageDraw.Draw(image)
    w, h = size
    draw.ellipse((w * 0.25, h * 0.2, w * 0.75, h * 0.7), fill="#f2c9a8", outline="black", width=8)
    draw.ellipse((w * 0.36, h * 0.4, w * 0.44, h * 0.46), fill="#314a7a")
    draw.ellipse((w * 0.56, h * 0.4, w * 0.64, h * 0.46), fill="#314a7a")
    info = PngImagePlugin.PngInfo()
    for key, value in text.items():
        info.add_text(key, value)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", pnginfo=info)
    return buffer.getvalue()


def choose(page: Page, name: str = "hero.png", body: bytes = b"", mime: str = "image/png") -> None:
    page.set_input_files(".rc-file", {"name": name, "mimeType": mime, "buffer": body or art()})


def convert(page: Page) -> None:
    choose(page)
    page.wait_for_selector(".rc-card:not([hidden])")
    page.click("#rc-convert")


def wait_done(page: Page, timeout: float = 30_000) -> None:
    page.wait_for_selector(".rc-stamped:visible", timeout=timeout)


def slider(page: Page) -> int:
    return int(page.input_value(".rc-compare input"))


# ---- the main path


def test_card_shows_what_the_model_will_see(open_page: Any) -> None:
    page = open_page()
    choose(page, name="写真 <img src=x onerror=boom()>.png")
    expect(page.locator(".rc-size")).to_have_text("900×1200 → 288×384 (LANCZOS, RGB on white)")
    expect(page.locator(".rc-name")).to_have_text("写真 <img src=x onerror=boom()>.png")
    expect(page.locator(".rc-fits")).to_contain_text("Fits the safe area, about 1.2 of 24.0 GB RAM")
    expect(page.locator(".rc-box")).to_have_attribute("data-view", "ready")
    page.get_by_role("button", name="Enlarge: What the model sees").click()
    expect(page.get_by_role("dialog").locator("img")).to_be_visible()
    page.get_by_role("button", name="Actual pixels").click()
    width = page.get_by_role("dialog").locator("img").evaluate("image => image.getBoundingClientRect().width")
    assert width == 288
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_convert_reload_in_the_middle_slider_download(open_page: Any) -> None:
    page = open_page()
    convert(page)
    expect(page.locator(".rc-step")).to_have_text(re.compile(r"step \d+/20"), timeout=10_000)
    assert page.get_attribute(".rc-shown", "src").startswith("data:image/jpeg;base64,")
    expect(page.locator(".rc-memory")).to_have_text(re.compile(r"RAM \d\.\d/24\.0 GB"))
    expect(page.locator(".rc-plan")).to_have_text("All weights in memory · cpu · sdpa")
    inside(page, ".rc-run .rc-cancel")
    box = page.locator(".rc-box").bounding_box()

    page.reload()
    expect(page.locator(".rc-step")).to_have_text(re.compile(r"step \d+/20"), timeout=10_000)
    assert page.get_attribute(".rc-shown", "src").startswith("data:image/jpeg;base64,")
    expect(page.locator(".rc-name")).to_have_text("hero.png")  # the picture is still chosen too
    assert int(page.get_attribute(".rc-run .rc-bar", "aria-valuenow")) > 0

    wait_done(page)
    after = page.locator(".rc-box").bounding_box()
    assert (abs(after["width"] - box["width"]), abs(after["height"] - box["height"])) < (2, 2)  # nothing jumped
    check_slider(page)
    check_downloads(page)
    expect(page.locator(".rc-facts")).to_contain_text("No LoRA (base only) · CFG 7 · 20 steps · seed")


def inside(page: Page, selector: str) -> None:
    """Check that the window shows the whole of an element as it is, without scrolling."""
    box = page.locator(selector).bounding_box()
    assert box and box["y"] >= 0 and box["y"] + box["height"] <= page.evaluate("innerHeight")


def check_slider(page: Page) -> None:
    page.focus(".rc-compare input")
    for key, value in (("ArrowRight", 51), ("ArrowLeft", 50), ("End", 100), ("Home", 0), ("PageUp", 10)):
        page.keyboard.press(key)
        assert slider(page) == value
    assert page.get_attribute(".rc-compare input", "aria-valuetext") == "90 % after"
    box = page.locator(".rc-compare").bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.1, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.8, middle, steps=5)
    page.mouse.up()
    assert 78 <= slider(page) <= 82
    assert "80" in page.locator(".rc-b").evaluate("image => getComputedStyle(image).clipPath")[:26]
    sizes = page.locator(".rc-compare img").evaluate_all("all => all.map(i => [i.naturalWidth, i.naturalHeight])")
    assert sizes[0] == sizes[1]


def check_downloads(page: Page) -> list[bytes]:
    """Saved bytes are the stored bytes, and the stamped file differs from the clean one; returns both."""
    saved = []
    for name in (".rc-stamped", ".rc-clean"):
        with page.expect_download() as download:
            page.click(name)
        body = Path(download.value.path()).read_bytes()
        address = page.get_attribute(name, "href").partition("?")[0]
        assert page.request.get(urlsplit(page.url)._replace(path=address).geturl()).body() == body
        assert download.value.suggested_filename.endswith(".png")
        saved.append(body)
    assert saved[0] != saved[1]
    return saved


def test_cancel_then_run_again(open_page: Any) -> None:
    page = open_page()
    convert(page)
    expect(page.locator(".rc-step")).to_have_text(re.compile(r"step \d+/20"), timeout=10_000)
    page.click(".rc-cancel")
    expect(page.locator(".rc-veil")).to_have_text(re.compile(r"Cancelled at step \d+ of 20"), timeout=5000)
    expect(page.locator("#rc-part-jobs li")).to_have_attribute("data-state", "cancelled")
    page.get_by_role("button", name="Run again").click()
    expect(page.locator("#rc-part-jobs li")).to_have_count(2)
    wait_done(page)


def test_plan_line_tells_what_is_offloaded(open_page: Any) -> None:
    page = open_page()
    convert(page)
    expect(page.locator(".rc-plan")).to_have_text("All weights in memory · cpu · sdpa", timeout=10_000)
    page.evaluate(
        """() => { const [id, said] = [...rc.live.entries()].at(-1);
          said.plan = { mode: "stream", resident: 12, blocks: 60, attention: "sdpa", device: "cuda" }; }"""
    )
    expect(page.locator(".rc-plan")).to_have_text("Offload: stream, 12/60 resident · sdpa")
    wait_done(page)


def test_failed_job_is_a_sentence(open_page: Any) -> None:
    page = open_page()
    write_prompt(page, "please fail")
    convert(page)
    alert = page.locator("#rc-part-stage .rc-error")
    expect(alert).to_have_text("The result has a single colour; lower CFG or strength, then try again.")
    assert alert.get_attribute("role") == "alert"
    expect(page.get_by_role("button", name="Try again")).to_be_visible()


def test_two_jobs_line_up_and_can_be_looked_at(open_page: Any) -> None:
    page = open_page()
    convert(page)
    page.wait_for_timeout(1100)  # within a second it would be the same press
    page.click("#rc-convert")
    expect(page.locator("#rc-part-jobs li")).to_have_count(2)
    expect(page.locator(".rc-veil")).to_have_text("Next in line")
    page.locator("#rc-part-jobs li button").nth(1).click()
    expect(page.locator(".rc-box")).to_have_attribute("data-view", "running")
    page.locator("#rc-part-jobs li button").nth(0).click()
    page.click(".rc-cancel")
    expect(page.locator(".rc-veil")).to_have_text("Cancelled")


def test_double_press_is_one_job(open_page: Any) -> None:
    page = open_page()
    choose(page)
    page.wait_for_selector(".rc-card:not([hidden])")
    page.dblclick("#rc-convert")
    expect(page.locator("#rc-part-jobs li")).to_have_count(1)
    page.wait_for_timeout(500)
    expect(page.locator("#rc-part-jobs li")).to_have_count(1)


# ---- ways in, and what is no picture


def test_convert_without_a_picture_says_so(open_page: Any) -> None:
    page = open_page()
    page.click("#rc-convert")
    expect(page.locator("#rc-part-go .rc-error")).to_have_text("Choose a picture first.")


def test_not_a_picture_and_too_big(browser: Browser, url: str, tmp_path: Path) -> None:
    context = browser.new_context(viewport=DESKTOP)
    page = context.new_page()  # the refusal itself is a line in the console, so this page is not watched for errors
    load(page, url)
    choose(page, name="x.png", body=b"<html>no</html>")
    alert = page.locator("#rc-part-drop .rc-error")
    expect(alert).to_have_text("This file is not a picture; choose a PNG, JPG, WebP or TIFF.")
    expect(page.locator("#rc-drop")).to_be_visible()
    large = tmp_path / "hero.png"
    large.write_bytes(os.urandom(41_000_000))
    page.set_input_files(".rc-file", large)
    expect(alert).to_contain_text("41.0 MB is over the limit of 40 MB")
    choose(page)
    expect(page.locator(".rc-card")).to_be_visible()
    expect(alert).to_be_hidden()
    context.close()


def test_example_is_taken(open_page: Any) -> None:
    page = open_page()
    page.get_by_role("button", name="Use example 2").click()
    expect(page.locator(".rc-name")).to_have_text(re.compile(r"\.webp$"))
    expect(page.locator(".rc-size")).to_contain_text("256×256, size unchanged")


@pytest.mark.parametrize("way", ["paste", "drop"])
def test_paste_and_drop_anywhere(open_page: Any, way: str) -> None:
    page = open_page()
    page.evaluate(
        """async ([way, bytes]) => {
          const data = new DataTransfer();
          data.items.add(new File([new Uint8Array(bytes)], "dropped.png", { type: "image/png" }));
          const event = way === "paste" ? new ClipboardEvent("paste", { clipboardData: data, bubbles: true })
            : new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
          document.body.dispatchEvent(event);
        }""",
        [way, list(art((60, 80)))],
    )
    expect(page.locator(".rc-name")).to_have_text("dropped.png")


def test_keyboard_alone(open_page: Any) -> None:
    page = open_page()
    page.focus("#rc-drop")
    with page.expect_file_chooser() as chooser:
        page.wait_for_timeout(300)  # the driver is told to catch the chooser in its own time
        page.keyboard.press("Enter")
    chooser.value.set_files({"name": "hero.png", "mimeType": "image/png", "buffer": art()})
    page.wait_for_selector(".rc-card:not([hidden])")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#rc-part-jobs li")).to_have_count(1)
    wait_done(page)


def test_settings_come_back_from_a_result(open_page: Any) -> None:
    page = open_page()
    choose(page, body=art(parameters="old"))
    page.get_by_role("button", name="Restore its settings").click()
    expect(page.locator("#rc-f-steps input[type=number]")).to_have_value("9")
    expect(page.locator("#rc-f-cfg input[type=number]")).to_have_value("3")
    expect(page.locator("#rc-f-seed input")).to_have_value("77")
    expect(page.locator("#rc-part-drop .rc-note")).to_contain_text("restored")
    choose(page, body=art(parameters="old"))
    page.get_by_role("button", name="Use it as the picture").click()
    expect(page.locator(".rc-ask")).to_have_count(0)
    expect(page.locator(".rc-card")).to_be_visible()


def test_an_enlarged_picture_is_not_called_padded(open_page: Any) -> None:
    page = open_page()
    choose(page, body=art((60, 90)))
    expect(page.locator(".rc-notes")).to_contain_text("Enlarged 4 times for the model")
    expect(page.locator(".rc-notes")).not_to_contain_text("padded")


def test_settings_that_can_not_be_used_are_a_note(open_page: Any) -> None:
    page = open_page()
    choose(page, body=art(parameters="broken"))
    expect(page.locator(".rc-notes")).to_contain_text("The settings in this file can't be used")
    expect(page.locator(".rc-ask")).to_have_count(0)


# ---- settings


def test_strength_is_there_only_with_a_version(open_page: Any, url: str) -> None:
    page = open_page()
    strength = page.locator("#rc-f-strength input[type=number]")
    expect(page.locator("#rc-f-lora input")).to_have_value("No LoRA (base only)")
    expect(strength).to_be_disabled()
    opacity = "element => Number(getComputedStyle(element).opacity)"
    assert page.locator("#rc-f-strength").evaluate(opacity) < 0.7
    page.locator("#rc-f-lora input").click()
    page.get_by_role("option", name="v3056").click()
    expect(strength).to_be_enabled()
    assert page.locator("#rc-f-strength").evaluate(opacity) == 1
    strength.fill("0.4")
    strength.blur()
    page.wait_for_timeout(300)
    load(page, url)
    expect(strength).to_be_enabled()
    expect(strength).to_have_value("0.4")
    page.locator("#rc-f-lora input").click()
    page.get_by_role("option", name="No LoRA").click()
    expect(strength).to_be_disabled()


def test_a_version_says_what_it_is_and_what_cant_be_used(browser: Browser, tmp_path: Path) -> None:
    with fake_app(tmp_path, free_port()) as url:
        page = browser.new_context(viewport=DESKTOP).new_page()
        rows = page.request.get(f"{url}/api/weights").json()
        rows[0] |= {"recommendation": "natural look", "picture": True}
        rows[1] |= {"action": "reject", "reason": "LoRA 'flux.safetensors' was made for Flux, not for this base."}
        page.route("**/api/weights", lambda route: route.fulfill(json=rows))
        looked = rows[0] | {"action": "warn", "reason": "LoRA 'x' adds nothing: all of its values are zero."}
        page.route("**/api/weights/check*", lambda route: route.fulfill(json=looked))
        load(page, url)
        part = page.locator("#rc-part-version")
        expect(part.locator(".rc-version")).to_be_hidden()
        page.locator("#rc-f-lora input").click()
        page.get_by_role("option", name="v8500").click()
        expect(part.locator(".rc-about")).to_have_text("Natural look · 840 of 840 modules matched, rank 32")
        expect(part.locator(".rc-warned")).to_contain_text(
            "adds nothing"
        )  # found when all of its numbers were looked at
        expect(part.get_by_alt_text("Example of v8500")).to_be_visible()
        assert part.locator("img").evaluate("image => image.decode().then(() => image.naturalWidth)") == 64
        page.get_by_text("1 file in the weights folder can't be used").click()
        expect(part.get_by_text("was made for Flux")).to_be_visible()
        page.context.close()


def test_a_running_job_is_switched_to_another_version(open_page: Any, url: str) -> None:
    page = open_page()
    page.locator("#rc-f-steps input[type=number]").fill("40")
    page.locator("#rc-f-lora input").click()
    page.get_by_role("option", name="v3056").click()
    convert(page)
    expect(page.locator(".rc-step")).to_contain_text("/40")
    expect(page.locator(".rc-switch")).to_be_hidden()  # it has what is chosen
    page.locator("#rc-f-lora input").click()
    page.get_by_role("option", name="v8500").click()
    button = page.get_by_role("button", name="Switch to v8500 now")
    button.click()
    expect(page.locator(".rc-toast")).to_have_text("v8500 in effect (0.2 s)")
    expect(page.locator(".rc-switch")).to_be_hidden()
    job = page.request.get(f"{url}/api/jobs").json()[0]
    assert [ref["name"] for ref in job["request"]["loras"]] == ["AnythingtoRealCharacters2511_0008500"]
    page.locator("#rc-f-lora input").click()
    page.get_by_role("option", name="No LoRA").click()
    expect(page.get_by_role("button", name="Switch to No LoRA (base only) now")).to_be_visible()
    page.locator(".rc-cancel").click()
    expect(page.locator(".rc-veil")).to_contain_text("Cancelled at step")
    expect(page.locator(".rc-switch")).to_be_hidden()


def test_sizes_are_explained(open_page: Any) -> None:
    expect(open_page().locator("#rc-f-size")).to_contain_text("Native is the size that the model was trained on")


def test_presets_set_numbers_and_edits_make_them_custom(open_page: Any) -> None:
    page = open_page()
    page.get_by_text("Quick draft").click()
    steps, cfg = page.locator("#rc-f-steps input[type=number]"), page.locator("#rc-f-cfg input[type=number]")
    expect(steps).to_have_value("12")
    expect(cfg).to_have_value("5")
    expect(page.get_by_label("Small 288")).to_be_checked()
    steps.fill("13")
    steps.blur()
    expect(page.get_by_label("Custom")).to_be_checked()
    steps.fill("12")
    steps.blur()
    expect(page.get_by_label("Quick draft")).to_be_checked()


def test_size_changes_the_card(open_page: Any) -> None:
    page = open_page()
    choose(page)
    expect(page.locator(".rc-size")).to_contain_text("288×384")
    page.get_by_text("Native 256×256").click()
    expect(page.locator(".rc-size")).to_contain_text("192×256")


def test_form_is_kept_over_a_reload(open_page: Any, url: str) -> None:
    page = open_page()
    page.get_by_text("Portrait").click()
    page.locator("#rc-seed").get_by_role("button", name="New").click()
    expect(page.locator("#rc-f-seed input")).not_to_have_value("-1")
    seed = page.input_value("#rc-f-seed input")
    page.get_by_role("button", name="Prompt").click()
    page.get_by_text("Enhanced").click()
    expect(page.get_by_label("Prompt", exact=True)).to_have_value(re.compile("real person"))
    page.get_by_label("Prompt", exact=True).fill("my words")
    expect(page.get_by_label("My own")).to_be_checked()
    page.get_by_text("Enhanced").click()
    page.get_by_label("Negative prompt").fill("noise")
    page.locator("#rc-f-lora input").click()
    page.get_by_role("option", name="v3056").click()
    page.wait_for_timeout(300)
    load(page, url)
    expect(page.locator("#rc-f-steps input[type=number]")).to_have_value("25")
    expect(page.locator("#rc-f-seed input")).to_have_value(seed)
    expect(page.locator("#rc-f-lora input")).to_have_value("v3056 · 1 MB")
    page.get_by_role("button", name="Prompt").click()
    expect(page.get_by_label("Negative prompt")).to_have_value("noise")
    expect(page.get_by_label("Enhanced")).to_be_checked()
    expect(page.get_by_label("Portrait")).to_be_checked()
    page.locator("#rc-seed").get_by_role("button", name="Random").click()
    expect(page.locator("#rc-f-seed input")).to_have_value("-1")


def test_form_reaches_the_job(open_page: Any, url: str) -> None:
    page = open_page()
    page.get_by_text("Quick draft").click()
    page.locator("#rc-f-lora input").click()
    page.get_by_role("option", name="v8500").click()
    page.locator("#rc-f-strength input[type=number]").fill("0.65")
    page.get_by_role("button", name="More LoRAs").click()
    expect(page.locator("#rc-f-strength2 input[type=number]")).to_be_disabled()
    page.locator("#rc-f-lora2 input").click()
    page.locator("#rc-f-lora2").get_by_role("option", name="v500").click()
    page.locator("#rc-f-strength2 input[type=number]").fill("0.4")
    page.locator("#rc-f-seed input").fill("4242")
    page.get_by_role("button", name="Memory").click()
    page.locator("#rc-f-tile input").click()
    page.get_by_role("option", name="128 pixels").click()
    page.get_by_label("Stamp the settings").uncheck()
    convert(page)
    wait_done(page)
    request = page.request.get(f"{url}/api/jobs").json()[0]["request"]
    wanted = {"steps": 12, "cfg": 5, "seed": 4242, "size": "safe", "long_edge": 288, "stamp": False, "preset": "draft"}
    wanted["tile"] = 128
    assert {key: request[key] for key in wanted} == wanted
    assert request["loras"] == [
        {"name": "AnythingtoRealCharacters2511_0008500", "strength": 0.65},
        {"name": "AnythingtoRealCharacters2511_0000500", "strength": 0.4},
    ]
    expect(page.locator(".rc-clean")).to_be_hidden()
    expect(page.locator(".rc-facts")).to_contain_text("v8500 × 0.65 + v500 × 0.4 · CFG 5 · 12 steps · seed 4242")


def test_memory_controls_of_a_machine_without_a_card(open_page: Any) -> None:
    page = open_page()
    page.get_by_role("button", name="Memory").click()
    labels = page.locator("#rc-f-offload label")
    expect(labels).to_have_text(["Automatic (resident)", "Stream", "Resident"])
    expect(page.locator("#rc-f-offload")).to_contain_text("Two more modes need a graphics card")
    expect(page.locator("#rc-f-vram input[type=range]")).to_be_disabled()
    expect(page.locator("#rc-f-vram")).to_contain_text("No graphics card is used here")
    expect(page.get_by_label("Auto Balance")).to_be_checked()
    page.get_by_text("Portrait").click()
    expect(page.get_by_label("High Quality")).to_be_checked()
    page.locator("#rc-f-strategy").get_by_text("Batch Fast", exact=True).click()
    expect(page.get_by_label("Portrait")).to_be_checked()  # a strategy never changes the picture
    page.get_by_text("Daily").click()
    expect(page.get_by_label("Auto Balance")).to_be_checked()


def test_memory_controls_of_a_machine_with_a_card(browser: Browser, tmp_path: Path) -> None:
    with fake_app(tmp_path, free_port(), step_s=0.02, card_gb=24) as url:
        page = browser.new_context(viewport=DESKTOP).new_page()
        load(page, url)
        choose(page)
        expect(page.locator(".rc-fits")).to_contain_text("about 3.8 of 24.0 GB GPU")
        page.get_by_role("button", name="Memory").click()
        expect(page.locator("#rc-f-offload label")).to_have_count(5)
        expect(page.get_by_label("Automatic (stream)")).to_be_checked()
        page.locator("#rc-f-offload").get_by_text("Resident", exact=True).click()
        expect(page.locator(".rc-tight")).to_contain_text("about 58.5 of 24.0 GB GPU")
        page.locator("#rc-f-offload").get_by_text("Stream", exact=True).click()
        budget = page.locator("#rc-f-vram input[type=number]")
        budget.fill("6.5")
        budget.blur()
        expect(page.locator(".rc-fits")).to_contain_text("about 3.8 of 6.5 GB GPU")
        page.locator("#rc-f-strategy").get_by_text("Batch Fast", exact=True).click()
        page.click("#rc-convert")
        expect(page.locator(".rc-plan")).to_have_text("Offload: stream, 12/60 resident · sdpa", timeout=10_000)
        wait_done(page)
        page.locator("#rc-f-offload").get_by_text(
            "Resident", exact=True
        ).click()  # a job that is run again keeps its own choices
        page.get_by_role("button", name="Again, new seed").click()
        expect(page.locator("#rc-part-jobs li")).to_have_count(2)
        wait_done(page)
        wanted = {"offload": "stream", "vram": 6.5, "strategy": "batch"}
        for job in page.request.get(f"{url}/api/jobs").json():
            assert {key: job["request"][key] for key in wanted} == wanted
        page.goto(url)
        expect(page.locator(".rc-card")).to_be_visible()
        page.get_by_role("button", name="Memory").click()
        expect(page.get_by_label("Resident", exact=True)).to_be_checked()
        expect(page.locator("#rc-f-vram input[type=number]")).to_have_value("6.5")
        expect(page.get_by_label("Batch Fast")).to_be_checked()
        expect(page.locator(".rc-tight")).to_contain_text("about 58.5 of 6.5 GB GPU")
        page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_theme_follows_the_system_and_the_button(open_page: Any, url: str, scheme: str) -> None:
    page = open_page(color_scheme=scheme)
    dark = "document.body.classList.contains('dark')"
    assert page.evaluate(dark) == (scheme == "dark")
    button = page.locator(".rc-theme")
    button.click()
    button.click()
    assert button.get_attribute("aria-label") == "Theme: dark"
    assert page.evaluate(dark)
    load(page, url)
    assert page.evaluate(dark)


# ---- phone, names, connection


def test_phone_can_cancel_while_another_picture_is_chosen(browser: Browser, tmp_path: Path) -> None:
    with fake_app(tmp_path, free_port(), step_s=0.5) as url:  # slow enough for a busy machine
        page = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True).new_page()
        load(page, url)
        convert(page)
        cancel = page.locator(".rc-mini button")
        expect(cancel).to_be_visible()
        choose(page, name="next.png")
        expect(page.locator(".rc-name")).to_have_text("next.png")
        expect(page.locator(".rc-box")).to_have_attribute("data-view", "ready")
        expect(page.locator(".rc-mini span")).to_have_text(re.compile(r"step \d+/20"), timeout=10_000)
        inside(page, ".rc-mini button")
        inside(page, "#rc-convert")
        cancel.tap()
        expect(page.locator("#rc-part-jobs li")).to_have_attribute("data-state", "cancelled", timeout=5000)
        expect(page.locator(".rc-mini")).to_be_hidden()
        page.context.close()


@pytest.mark.parametrize("width", [360, 390])
def test_phone_has_no_sideways_scroll(open_page: Any, width: int) -> None:
    page = open_page({"width": width, "height": 844}, has_touch=True, is_mobile=True)
    wide = "document.documentElement.scrollWidth > innerWidth"
    assert not page.evaluate(wide)
    page.tap(".rc-fold")
    expect(page.locator("#rc-f-preset")).to_be_visible()
    assert not page.evaluate(wide)
    page.tap(".rc-fold")
    convert(page)
    expect(page.locator(".rc-mini span")).to_have_text(re.compile(r"step \d+/20"), timeout=10_000)
    bar = page.locator("#rc-go").bounding_box()
    assert bar["y"] + bar["height"] <= 845
    assert not page.evaluate(wide)
    wait_done(page)
    assert not page.evaluate(wide)
    box = page.locator(".rc-compare").bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] * 0.8, min(box["y"] + box["height"] / 2, 600))
    assert 77 <= slider(page) <= 83


def test_everything_that_can_be_pressed_has_a_name(open_page: Any) -> None:
    page = open_page()
    convert(page)
    wait_done(page)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, input, textarea, a, [role=button], img")]
          .filter(e => e.checkVisibility() && !e.closest(".rc-hidden"))
          .filter(e => e.tagName === "IMG" ? !e.hasAttribute("alt")
            : !(e.ariaLabel || e.textContent.trim() || e.labels?.length || e.getAttribute("aria-labelledby")))
          .map(e => e.outerHTML.slice(0, 120))"""
    )
    assert nameless == []
    assert page.locator("h1").count() == 1
    assert page.locator("h2:visible").all_inner_texts() == ["Picture", "Result", "Settings", "My jobs"]


def test_lost_connection_keeps_the_page_and_the_text(browser: Browser, tmp_path: Path) -> None:
    port = free_port()
    context = browser.new_context(viewport=DESKTOP)
    page = context.new_page()
    with fake_app(tmp_path, port) as address:
        load(page, address)
        page.evaluate("window.mark = 1")
        write_prompt(page, "half a thought")
    expect(page.locator(".rc-chip")).to_have_attribute("data-state", "offline", timeout=8000)
    page.click("#rc-convert", force=True)
    expect(page.locator("#rc-part-go .rc-error")).to_contain_text("No connection right now")
    with fake_app(tmp_path, port):
        expect(page.locator(".rc-chip")).to_have_attribute("data-state", "ready", timeout=15_000)
        expect(page.locator("#rc-part-go .rc-error")).to_be_hidden()
        assert page.evaluate("window.mark") == 1
        assert page.get_by_label("Prompt", exact=True).input_value() == "half a thought"
        context.close()


def test_what_is_typed_while_the_page_opens_stands(browser: Browser, url: str) -> None:
    context = browser.new_context(viewport=DESKTOP)
    page = context.new_page()
    hold: list[Any] = []
    page.route("**/api/weights", lambda route: hold.append(route))
    page.goto(url)
    page.get_by_role("button", name="Prompt").click()
    prompt = page.get_by_label("Prompt", exact=True)
    while not hold:
        page.wait_for_timeout(50)
    page.wait_for_timeout(300)
    prompt.fill("half a thought")
    hold[0].continue_()
    page.wait_for_function("rc.state.opened")
    page.wait_for_timeout(400)
    assert prompt.input_value() == "half a thought"
    context.close()


@pytest.mark.slow
def test_seven_tabs_are_all_alive(browser: Browser, url: str) -> None:
    context = browser.new_context(viewport=DESKTOP)
    hide = "Object.defineProperty(document, 'hidden', {configurable: true, get: () => true});"
    for number in range(1, 8):
        page = context.new_page()
        load(page, url)
        # Headless tabs all count as seen: say otherwise, as a browser would of those behind.
        page.evaluate(hide + "document.dispatchEvent(new Event('visibilitychange'))")
        if (
            number % 4 == 0
        ):  # a browser has six connections for all tabs of an address: without letting go, the rest hangs
            page.wait_for_timeout(5200)
    context.close()


# ---- the real thing


@pytest.mark.slow
@pytest.mark.skipif(not (DEMO / "model_index.json").exists(), reason="the demo base is not in weights/demo")
def test_real_service_from_upload_to_download(browser: Browser, tmp_path: Path) -> None:
    port = free_port()
    options = ("--port", str(port), "--data", str(tmp_path / "data"))
    with serving("realchar", "ui", *options, port=port, log=tmp_path / "log") as address:
        context = browser.new_context(viewport=DESKTOP)
        seen = Seen(context)
        page = context.new_page()
        load(page, address)
        expect(page.locator(".rc-chip")).to_have_attribute("data-state", "ready", timeout=90_000)
        page.get_by_text("Quick draft").click()
        convert(page)
        expect(page.locator(".rc-step")).to_have_text(re.compile(r"step \d+/12"), timeout=120_000)
        page.reload()
        expect(page.locator("#rc-part-jobs li")).to_have_count(1)
        wait_done(page, timeout=240_000)
        check_slider(page)
        for body in check_downloads(page):
            (tmp_path / "saved.png").write_bytes(body)
            params = read_params(tmp_path / "saved.png")
            assert params is not None and params["base"]["demo"]
            request = params["request"]
            assert (request["preset"], request["steps"], request["cfg"]) == ("draft", 12, 5)
            assert 0 <= request["seed"] < 2**32 and request["prompt"] == PROMPTS["base"]
            with Image.open(tmp_path / "saved.png") as image:
                assert params["size"] == list(image.size)
                assert f"Seed: {request['seed']}" in image.text["parameters"]  # type: ignore[attr-defined]
        context.close()
        assert seen.hosts - {""} <= {urlsplit(address).netloc}
        assert seen.errors == []
