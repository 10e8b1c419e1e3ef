"""The report of a hostile run in a real browser: nothing runs, nothing leaves, nothing breaks."""

from __future__ import annotations

from pathlib import Path

import pytest

import analysis
from analysis.lab.run_folder import RunFolder
from tests.analysis.embedded_run import make_embedded_run
from tests.analysis.report.hostile_run import make_hostile
from tests.hostile import CANARY, HOSTILE

WIDTHS = {"wide": 1320, "phone": 390}


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hostile")
    folder = make_hostile(RunFolder(make_embedded_run(root / "lab").root))
    run = analysis.load(folder, index=False)
    return run.report(root / "page.html", compare=run, figures=False).path


@pytest.fixture(params=sorted(WIDTHS))
def shown(request: pytest.FixtureRequest, browser, page_file: Path):
    """The page, with every part of it open, and what it tried: dialogs, requests, messages, errors."""
    context = browser.new_context(viewport={"width": WIDTHS[request.param], "height": 900})
    page = context.new_page()
    tried: list[str] = []
    page.on("dialog", lambda dialog: (tried.append(f"dialog {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda r: None if r.url.startswith(("file:", "data:")) else tried.append(r.url))
    page.on("console", lambda message: tried.append(f"console {message.text}"))
    page.on("pageerror", lambda error: tried.append(f"error {error}"))
    page.on(
        "framenavigated", lambda frame: tried.append(f"frame {frame.url}") if frame.parent_frame else None
    )
    try:
        page.goto(page_file.as_uri())
        # Driven from outside: the page itself may run nothing.
        page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true; })")
        yield page, tried
    finally:
        context.close()


def test_hostile_text_stands_there_as_text(shown) -> None:
    page, tried = shown
    seen = page.evaluate("document.body.innerText")
    assert CANARY in seen
    assert len([text for text in HOSTILE if text.startswith("<") and text in seen]) >= 5
    assert page.evaluate("window.hit") is None
    assert page.evaluate("document.scripts.length") == 0
    assert page.evaluate("document.querySelectorAll('iframe,form,object,embed,link,base,svg').length") == 0
    assert page.title() not in ("", "title")
    assert tried == []


def test_links_lead_only_into_the_page(shown) -> None:
    page, tried = shown
    links = page.evaluate("[...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
    assert links
    assert all(link.startswith("#") for link in links)
    for link in dict.fromkeys(links):
        assert page.evaluate("id => document.getElementById(id) !== null", link[1:])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "rp-skip"
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#main"
    assert tried == []


def test_the_layout_holds(shown) -> None:
    """Nothing is wider than the window but what scrolls by itself, and the whole page is there to the end."""
    page, _ = shown
    wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert wide <= 0
    sections = page.evaluate(
        "[...document.querySelectorAll('main > section')]"
        ".map(part => [part.id, part.parentElement.id, part.offsetHeight])"
    )
    assert [name for name, _, _ in sections][:2] == ["findings", "comparison"]
    assert {parent for _, parent, _ in sections} == {"main"}
    assert all(height > 40 for _, _, height in sections)
    assert page.evaluate("document.querySelector('footer').getBoundingClientRect().height") > 10
    assert "by slime-bridge" in page.locator("footer").inner_text()


def test_either_ground_has_its_colours(browser, page_file: Path) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        context = browser.new_context(color_scheme=scheme)
        try:
            page = context.new_page()
            page.goto(page_file.as_uri())
            colours[scheme] = page.evaluate(
                "(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))"
            )
        finally:
            context.close()
    assert colours["light"] == ["rgb(255, 255, 255)", "rgb(29, 31, 34)"]
    assert colours["dark"] == ["rgb(27, 29, 33)", "rgb(230, 230, 230)"]
