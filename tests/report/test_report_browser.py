"""The page as a person sees it, in headless Chromium without a network."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plait.report.html import write_report
from support.report_case import Case

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not CHROMIUM.exists():
        pytest.skip("needs Debian's chromium (apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def page(browser: Any, case: Case, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path = tmp_path_factory.mktemp("report") / "report.html"
    log = [{"step": i, "loss": 4 / (1 + i), "step_seconds": 0.1} for i in range(20)]
    write_report(path, plan=case.plan, predicted=case.predicted, measured=case.measured, log=log)
    opened = browser.new_page(viewport={"width": 1400, "height": 1000})
    opened.faults = []
    opened.on("console", lambda m: opened.faults.append(m.text) if m.type == "error" else None)
    opened.on("pageerror", lambda error: opened.faults.append(str(error)))
    opened.on(
        "request", lambda r: None if r.url.startswith(("file:", "data:", "blob:")) else opened.faults.append(r.url)
    )
    opened.goto(f"file://{path}")
    opened.wait_for_selector("#timeline .barlayer path", state="attached")
    yield opened
    opened.close()


def test_it_loads_without_errors_and_asks_the_network_for_nothing(page: Any) -> None:
    assert page.faults == []


def test_every_rank_has_bars_in_both_timelines(page: Any, case: Case) -> None:
    rows = page.evaluate(
        "() => [...new Set(document.getElementById('timeline').data.flatMap(t => Array.from(t.y, Math.floor)))].length"
    )
    labels = page.evaluate("() => document.getElementById('timeline').layout.yaxis.ticktext")
    assert len(labels) == 2 * len(case.plan.devices)
    assert rows >= len(labels)
    assert page.locator("#timeline .barlayer path").count() >= len(case.predicted) + len(case.measured)


def test_hovering_tells_what_a_bar_is(page: Any) -> None:
    box = page.locator("#timeline .barlayer .trace .point path").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector("#timeline .hoverlayer .hovertext")
    text = page.locator("#timeline .hoverlayer").text_content()
    assert "vision" in text
    assert "micro-batch" in text


def test_dragging_zooms_into_the_time_axis(page: Any) -> None:
    before = page.evaluate("() => document.getElementById('timeline')._fullLayout.xaxis.range.slice()")
    box = page.locator("#timeline .nsewdrag").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 20, steps=8)
    page.mouse.up()
    page.wait_for_timeout(300)
    after = page.evaluate("() => document.getElementById('timeline')._fullLayout.xaxis.range.slice()")
    assert after[1] - after[0] < 0.5 * (before[1] - before[0])


def test_the_other_figures_are_drawn(page: Any) -> None:
    for name in ("time", "memory", "history"):
        assert page.locator(f"#{name} .main-svg").count() > 0
    assert "paris" in page.locator(".sites").inner_text()


def test_text_follows_a_dark_scheme(browser: Any, page: Any) -> None:
    light = page.evaluate("() => document.getElementById('timeline')._fullLayout.font.color")
    page.emulate_media(color_scheme="dark")
    page.wait_for_timeout(500)
    dark = page.evaluate("() => document.getElementById('timeline')._fullLayout.font.color")
    page.emulate_media(color_scheme="light")
    assert light != dark
