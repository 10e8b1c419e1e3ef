"""The page as a file: whole, offline, closed to scripts, small, and without what must not leave."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

import analysis
from analysis import cli
from analysis.errors import ReportError
from analysis.html import escaped, passing
from analysis.lab.run_folder import RunFolder
from analysis.report import write_report
from analysis.report.redaction import Redactor
from tests.analysis.report.hostile_run import HIDDEN, SECRETS, make_hostile
from tests.analysis.report.synthetic import synthetic_run
from tests.hostile import CANARY

VOID = {"meta", "img", "wbr", "br", "link", "input", "hr"}


class Outline(HTMLParser):
    """Tags with attributes, and whether every one that is opened is closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == [], f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


class GivenRun(dict):
    """Frames as a run: what a report asks of one."""

    names = ("run",)
    problems = pd.DataFrame()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of a synthetic run with a fault."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(given("truncation"), path)
    return path.read_text("utf-8")


def given(fault: str = "", **size: int) -> GivenRun:
    run = GivenRun(synthetic_run(fault, **size))
    run.coverage = pd.DataFrame({"dumped": [], "matched": [], "trained": [], "fraction": []}, dtype=float)
    return run


def test_a_page_asks_for_nothing_and_runs_nothing(page: str) -> None:
    outline = Outline(page)
    policy = next(a["content"] for a in outline.all("meta") if a.get("http-equiv"))
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    assert not {"script", "link", "iframe", "object", "embed", "form", "base"} & {
        tag for tag, _ in outline.tags
    }
    for tag, attrs in outline.tags:
        assert not [name for name in attrs if name.startswith("on") or name == "style"], tag
        for name in ("src", "href"):
            if name in attrs:
                assert str(attrs[name]).startswith(("data:image/png;base64,", "#"))


def test_a_page_can_be_used_without_a_mouse_and_without_eyes(page: str) -> None:
    outline = Outline(page)
    ids = {attrs["id"] for _, attrs in outline.tags if "id" in attrs}
    assert len(ids) == sum("id" in attrs for _, attrs in outline.tags)
    links = [str(attrs["href"])[1:] for attrs in outline.all("a")]
    assert set(links) <= ids
    assert links[0] == "main"
    assert [len(outline.all(tag)) for tag in ("main", "header", "footer", "h1")] == [1, 1, 1, 1]
    assert all(attrs.get("aria-label") for attrs in outline.all("nav"))
    assert all(attrs.get("aria-labelledby") in ids for attrs in outline.all("section"))
    assert all(str(attrs.get("alt")).endswith(".") for attrs in outline.all("img"))
    assert all(attrs.get("scope") in ("col", "row") for attrs in outline.all("th"))
    assert outline.all("html") == [{"lang": "en"}]
    assert ":focus-visible" in page


def test_findings_come_first_and_lead_to_their_figures(page: str) -> None:
    assert page.index('id="findings"') < page.index('id="learning"')
    first = re.search(r'<li class="rp-finding">.*?</li>', page, re.DOTALL)
    assert first is not None
    assert "were cut off for length" in first[0]
    assert '<a href="#fig-truncation">' in first[0]


def test_a_healthy_run_says_so(tmp_path: Path) -> None:
    written = write_report(given(seed=1), tmp_path / "clean.html", figures=False)
    assert "No rule found anything that needs attention." in written.path.read_text("utf-8")
    assert written.findings.found == ()
    assert written.size == written.path.stat().st_size


@pytest.mark.slow
def test_a_thousand_rollouts_fit_into_five_megabytes(tmp_path: Path) -> None:
    written = write_report(given("too easy", rollouts=1000), tmp_path / "large.html")
    assert written.size < 5_000_000
    assert written.findings.found


def test_a_real_run_is_shown_with_its_sessions(embedded: RunFolder, tmp_path: Path) -> None:
    run = analysis.load(embedded.root, index=False)
    written = run.report(tmp_path / "page.html")
    html = written.path.read_text("utf-8")
    outline = Outline(html)
    assert "<h1>lab</h1>" in html
    assert "The largest advantage" in html
    assert [a for a in outline.all("div") if a.get("class") == "wb-transcript"]
    assert [a for a in outline.all("div") if a.get("class") == "wb-toks"]
    assert "Settings of the bridge" in html
    assert written.removed == {}
    assert written.withheld == {}


def test_two_runs_stand_side_by_side(tmp_path: Path) -> None:
    written = write_report(
        given(seed=1), tmp_path / "two.html", compare=given("reward drop", seed=2), figures=False
    )
    html = written.path.read_text("utf-8")
    Outline(html)
    row = re.search(r"<th[^>]*>training reward, rollouts 28 to 41</th>(.*?)</tr>", html)
    assert row is not None
    texts = re.findall(r"<td[^>]*>(.*?)</td>", row[1])
    first, second, difference, low, high = (float(text.replace("−", "-")) for text in texts[:5])
    assert first > 0.35
    assert second < 0.15
    assert low < difference < high < -0.2
    assert texts[-1] == "paired"
    assert "serious: Training reward fell" in html


def test_nothing_of_a_hostile_run_becomes_markup(embedded: RunFolder, tmp_path: Path) -> None:
    run = analysis.load(make_hostile(embedded), index=False)
    written = run.report(tmp_path / "page.html", compare=run, figures=False)
    html = written.path.read_text("utf-8")
    outline = Outline(html)
    allowed = set(
        "html head meta title style body a div header p h1 h2 h3 dl dt dd small nav ol ul li main section"
        " details summary table caption thead tbody tr th td figure figcaption img strong span article pre"
        " wbr br footer code mark".split()
    )
    assert {tag for tag, _ in outline.tags} <= allowed
    assert not set(html) & {"\x00", "\x1b", "\u202e", "\u2066", "\x9b"}
    assert CANARY in html
    assert written.size < 5_000_000


@pytest.mark.parametrize("content", [True, False])
def test_credentials_never_leave_and_are_counted(embedded: RunFolder, tmp_path: Path, content: bool) -> None:
    run = analysis.load(make_hostile(embedded, tuple(SECRETS.values())), index=False)
    written = run.report(tmp_path / "page.html", content=content, figures=False)
    html = written.path.read_text("utf-8")
    assert [secret for secret in HIDDEN if secret in html] == []
    if content:
        assert set(SECRETS) <= set(written.removed)
        assert all(f"{escaped(kind)} (" in html for kind in SECRETS)
        assert "wb-toks" not in html.split("</style>")[1], "token by token no credential can be seen"


def test_without_content_no_text_leaves(embedded: RunFolder, tmp_path: Path) -> None:
    run = analysis.load(make_hostile(embedded, ("plain",)), index=False)
    shown = run.report(tmp_path / "with.html", figures=False).path.read_text("utf-8")
    written = run.report(tmp_path / "without.html", content=False, compare=run, figures=False)
    html = written.path.read_text("utf-8")
    assert CANARY in shown
    assert CANARY not in html
    assert "wb-transcript" not in html.split("</style>")[1]
    assert written.withheld["transcript"] >= 3
    assert "Made without content; withheld:" in html


def test_emails_go_where_asked(tmp_path: Path) -> None:
    redactor = Redactor(emails=False)
    with passing(redactor):
        assert escaped("mail jane.doe@example.org now") == "mail *** now"
    assert dict(redactor.removed) == {"e-mail address": 1}
    assert Redactor()("jane.doe@example.org") == "jane.doe@example.org"


def test_secrets_at_a_cut_do_not_leave_in_halves() -> None:
    text = "x" * 60 + " sk-proj-abcdefgh12345678 " + "y" * 10_000
    for limit in range(60, 120):
        with passing(Redactor()):
            assert "abcd" not in escaped(text, limit)


def test_settings_named_like_secrets_are_masked() -> None:
    redactor = Redactor()
    assert redactor.setting("control_plane_token", "tok") == "***"
    assert redactor.setting("hf_checkpoint", "/models/x") == "/models/x"
    assert redactor.setting("control_plane_token", None) == "None"
    assert sum(redactor.removed.values()) == 1


def test_one_run_at_a_time(embedded: RunFolder, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ReportError, match="nothing in this run"):
        analysis.load(embedded.root, index=False).filter(rollout_id=99).report(tmp_path / "x.html")
    several = given()
    several.names = ("a", "b")
    with pytest.raises(ReportError, match=r"holds 2: a, b; choose one with run.filter\(run='a'\)"):
        write_report(several, tmp_path / "x.html")
    assert not (tmp_path / "x.html").exists()


@pytest.mark.parametrize("other", [{}, "run", 3])
def test_what_is_no_run_cannot_be_compared_with(other: object, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="about a loaded run"):
        write_report(given(), tmp_path / "x.html", compare=other)


@pytest.mark.parametrize("reward", [math.inf, -1e308, math.nan])
def test_rewards_without_bounds_are_no_obstacle(reward: float, tmp_path: Path) -> None:
    run = given()
    for name in ("session", "trace"):
        run[name] = run[name].assign(reward=reward)
    assert write_report(run, tmp_path / "x.html", figures=False).size > 0


def test_the_command_writes_the_page(embedded: RunFolder, tmp_path: Path, capsys) -> None:
    out = tmp_path / "page.html"
    paths = ["report", str(embedded.root), "--no-index", "-o", str(out), "--compare", str(embedded.root)]
    assert cli.main([*paths, "--no-content", "--no-figures"]) == 0
    said = capsys.readouterr().out
    assert said.endswith(f" KiB in {out}\n")
    assert "Compared with lab (second)" in out.read_text("utf-8")
    assert cli.main(["report", str(tmp_path / "nowhere"), "-o", str(out)]) == 1
    assert "workbench report:" in capsys.readouterr().err


def test_a_failed_write_leaves_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "page.html"
    target.write_text("old")

    def full(self: Path, other: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_report(given(), target, figures=False)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"page.html": "old"}


def test_a_place_where_no_page_can_be_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"is a folder: name the file, such as .*report\.html"):
        write_report(given(), tmp_path)
    with pytest.raises(ReportError, match="there is no folder"):
        write_report(given(), tmp_path / "none" / "page.html")


def test_the_fingerprint_tells_configurations_apart() -> None:
    from analysis.report.sections import fingerprint

    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})
    assert fingerprint({"fingerprint": "0123456789abcdef"}) == "0123456789ab"
    json.dumps(fingerprint({"a": object}))
