"""The page in a browser, as people use it: on a desk and on a phone."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from framecast import media

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SIZES = {"desk": (1280, 900), "phone": (320, 640)}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        message = "there is no Chromium: apt-get install chromium"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(params=SIZES)
def page(request: pytest.FixtureRequest, browser: Browser, server) -> Iterator[Page]:
    """The page just opened; an error on its console is a failure."""
    width, height = SIZES[request.param]
    scheme = "dark" if request.param == "phone" else "light"
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(server.url)
    expect(page.locator("#strip li")).to_have_count(4)
    yield page
    assert page.evaluate("document.documentElement.scrollWidth") == width, "nothing sticks out sideways"
    context.close()
    # Refused requests are part of what is tested, and the tests themselves read what a canvas shows.
    expected = ("Failed to load resource: the server responded with", "Canvas2D: Multiple readback operations")
    assert not [words for words in said if not words.startswith(expected)]


def pixels(page: Page, canvas: str) -> np.ndarray:
    """RGBA of what a canvas shows."""
    rows = page.locator(canvas).evaluate(
        "c => [c.height, c.width, ...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]"
    )
    return np.array(rows[2:], np.uint8).reshape(rows[0], rows[1], 4)


def until(page: Page, holds: Callable[[], bool]) -> None:
    """Wait without the browser's own waiting, which the page's policy forbids: it evaluates text."""
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        page.wait_for_timeout(20)


def test_upload_watch_and_download(page, server, tmp_path):
    clip = server.moving(10, 32)
    file = tmp_path / "my <i>own clip &amp;.npz"
    media.write(file, clip)
    page.get_by_label("Or a video of yours").set_input_files(file)
    expect(page.locator("#clip-note")).to_have_text("my <i>own clip &amp;.npz: 10 frames")
    page.get_by_label("Begin at frame").fill("1")
    page.get_by_label("Frames given to the model").fill("2")
    page.get_by_label("Frames in all").fill("6")
    page.get_by_label("Samples").fill("3")
    expect(page.locator("#strip li")).to_have_count(6)
    expect(page.locator("#strip li.given")).to_have_count(2)
    np.testing.assert_array_equal(pixels(page, "#strip li:first-child canvas")[..., 0], clip[1, ..., 0])

    page.get_by_role("button", name="Continue the clip").click()
    expect(page.locator("#progress")).to_contain_text("wave", timeout=30_000)
    until(page, lambda: page.locator("#bar").evaluate("bar => bar.value") > 0.05)
    until(page, lambda: set(pixels(page, "#pictures figure:nth-child(2) canvas")[..., 3].flat) == {0, 255})
    downloads = page.locator("#downloads")
    expect(downloads).to_be_visible(timeout=60_000)
    expect(page.locator("#spoken")).to_have_text("Done.")
    expect(page.locator("#pictures figcaption")).to_have_text(["The clip", "Sample 1", "Sample 2", "Sample 3"])
    page.get_by_role("button", name="Pause").click()
    for kind in ("mp4", "gif", "npz"):
        with page.expect_download() as begun:
            downloads.get_by_role("link", name=kind).click()
        begun.value.save_as(tmp_path / f"it.{kind}")
        assert begun.value.suggested_filename == f"framecast-sample.{kind}"
    video = np.load(tmp_path / "it.npz")["video"]
    assert video.shape == (3, 6, 32, 32, 1)
    np.testing.assert_array_equal(video[:, :2], np.stack([clip[1:3]] * 3))
    for frame in (0, 5):
        page.get_by_label("Frame", exact=True).fill(str(frame))
        for sample in range(3):
            shown = pixels(page, f"#pictures figure:nth-child({sample + 2}) canvas")
            np.testing.assert_array_equal(shown[..., 0], video[sample, frame, ..., 0])
    expect(page.locator("#frame-note")).to_have_text("Frame 5 of 5 · drawn by the model")


def test_cancel(page):
    page.get_by_label("Frames in all").fill("128")
    page.get_by_role("button", name="Continue the clip").click()
    expect(page.locator("#progress")).to_contain_text("wave", timeout=30_000)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#progress")).to_have_text("Cancelled.", timeout=30_000)
    expect(page.locator("#downloads")).to_be_hidden()
    expect(page.get_by_role("button", name="Continue the clip")).to_be_enabled()


def test_surprise_map(page, server, tmp_path):
    page.get_by_label("Or a video of yours").set_input_files(
        {"name": "square.gif", "mimeType": "image/gif", "buffer": media.encode(server.moving(6, 32), "gif")}
    )
    expect(page.locator("#clip-note")).to_have_text("square.gif: 6 frames")
    page.get_by_label("Frames in all").fill("5")
    page.get_by_role("button", name="Map the surprise").click()
    expect(page.locator("#surprise")).to_be_visible(timeout=60_000)
    expect(page.locator("#readout")).to_contain_text("bits per value over the frames from 1 on")
    expect(page.locator("#chart rect")).to_have_count(5)
    expect(page.locator("#chart rect.unscored")).to_have_count(1)
    assert pixels(page, "#pictures figure:nth-child(2) canvas")[..., :3].std() > 0
    with page.expect_download() as begun:
        page.locator("#downloads").get_by_role("link", name="npz").click()
    begun.value.save_as(tmp_path / "it.npz")
    assert np.load(tmp_path / "it.npz")["bits"].shape == (5, 32, 32)


def test_another_model_and_what_is_refused(page, server):
    names = page.locator("#model option").all_inner_texts()
    assert names == [str(folder) for folder in server.folders], "names stand there as they are"
    page.get_by_label("Model", exact=True).select_option(index=1)
    expect(page.locator("#model-facts")).to_contain_text("in colour")
    expect(page.locator("#built-in-note")).to_contain_text("No built-in clips suit this model")
    expect(page.get_by_role("button", name="Continue the clip")).to_be_disabled()
    page.get_by_label("Or a video of yours").set_input_files(
        {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"no video"}
    )
    expect(page.get_by_role("alert")).to_contain_text("notes.txt is of no kind that can be read")


def test_everything_is_reached_by_keyboard_and_named(page):
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("input, select, button, a, canvas, [tabindex='0']")]
            .filter((e) => e.checkVisibility() && e.getAttribute("aria-hidden") !== "true")
            .filter((e) => !e.labels?.length && !e.ariaLabel && !e.textContent.trim())
            .map((e) => e.outerHTML)"""
    )
    assert not unnamed
    reached = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
    expected = "model previous number next file start prime frames samples temperature seed another go measure strip"
    assert set(expected.split()) <= reached
    page.get_by_role("button", name="Continue the clip").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#downloads")).to_be_visible(timeout=60_000)


def test_text_can_be_read(page):
    """Contrast of 4.5 or more, as WCAG asks for (AA)."""
    poor = page.evaluate(
        """() => {
            const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
            const light = (colour) => {
                const [r, g, b] = parts(colour).slice(0, 3).map((v) => {
                    v /= 255;
                    return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
                });
                return 0.2126 * r + 0.7152 * g + 0.0722 * b;
            };
            const ground = (e) => {
                for (; e; e = e.parentElement) {
                    const colour = getComputedStyle(e).backgroundColor, [, , , alpha = 1] = parts(colour);
                    if (alpha > 0) return colour;
                }
                return "rgb(255, 255, 255)";
            };
            return [...document.querySelectorAll("h1, h2, p, label, legend, button:enabled, .given, li, span, a")]
                .filter((e) => e.checkVisibility() && e.textContent.trim())
                .map((e) => {
                    const [a, b] = [light(getComputedStyle(e).color), light(ground(e))].sort((x, y) => y - x);
                    return [(a + 0.05) / (b + 0.05), e.outerHTML.slice(0, 60)];
                })
                .filter(([contrast]) => contrast < 4.5);
        }"""
    )
    assert not poor
