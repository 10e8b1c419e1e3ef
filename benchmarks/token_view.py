"""How fast a long trace opens in the token view, against one span of HTML per token, in the same run.

A trace of 36,000 tokens is written as Polar stores it and loaded. Measured are the Python side (from the
files to what is sent: tokens with all overlays, widths, the first texts), in CPU time, and the browser side
(from the data to the painted page, in a headless Chromium), each as the median of several; then how long it
takes to paint after jumps through the trace. The plain way renders every token as a span with its colour and
details.

    python benchmarks/token_view.py            some two minutes on two cores; needs Chromium and Playwright
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from playwright.sync_api import sync_playwright
from support.token_page import spans_page, view_page

from analysis.explorers.token_view import layout_of, texts_of
from analysis.html.token_spans import token_spans_html
from analysis.token_glyphs import TokenGlyphs
from analysis.trace_tokens import read_trace_tokens
from tests.analysis.transcripts.made_sessions import load_sessions, session, trace

REPEATS = 5
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run"]


class Vocabulary:
    """A tokenizer of 50,000 words of 1 to 9 characters, some of them with a newline."""

    def decode(self, ids: Any, **options: Any) -> str:
        """Return the words of token ids."""
        return "".join(self._word(int(token)) for token in ids)

    @staticmethod
    def _word(token: int) -> str:
        return "\n" if token % 97 == 0 else " " * (token % 3 > 0) + "abcdefghi"[: 1 + token % 8]


def long_session(tokens: int) -> dict[str, Any]:
    """Return a session with one trace: a tenth prompt, then stretches of 200 sampled and 300 other tokens."""
    rng = np.random.default_rng(0)
    prompt = tokens // 10
    response = tokens - prompt
    ids = (rng.zipf(1.2, tokens) % 50_000).tolist()
    one = trace(
        ids=(ids[:prompt], ids[prompt:]),
        mask=[int(place % 500 < 200) for place in range(response)],
        response=(),
        response_logprobs=(-rng.exponential(0.5, response)).tolist(),
    )
    return session("long", one | {"response_logprobs": (-rng.exponential(0.5, response)).tolist()})


def cpu(act: Callable[[], Any]) -> float:
    """Return the median CPU milliseconds of doing something."""
    times = []
    for _ in range(REPEATS):
        began = time.process_time()
        act()
        times.append(1000 * (time.process_time() - began))
    return statistics.median(times)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=36_000)
    count = parser.parse_args().tokens
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        run = load_sessions(home / "run", long_session(count), tokenizer=Vocabulary())

        def opened() -> tuple[dict[str, Any], dict[str, Any]]:
            tokens = read_trace_tokens(run, "long")
            return layout_of(tokens, 1), texts_of(tokens, 0, 1024, 1)

        def plain() -> str:
            return str(token_spans_html(read_trace_tokens(run, "long"), "logprob", limit=count))

        tokens = read_trace_tokens(run, "long")
        began = time.process_time()
        TokenGlyphs(run._token_text()).glyphs(tokens.ids)
        first_texts = 1000 * (time.process_time() - began)
        rows = [("Python: from the files to what is sent", cpu(opened), cpu(plain))]
        (home / "view.html").write_text(view_page(tokens))
        (home / "spans.html").write_text(spans_page(tokens))
        rows += in_browser(home)
    print(f"{count:,} tokens of {len(set(tokens.ids.tolist())):,} kinds; milliseconds\n")
    print(f"{'':46}{'token view':>12}{'all spans':>12}{'ratio':>8}")
    for name, ours, theirs in rows:
        print(f"{name:46}{ours:12,.1f}{theirs:12,.1f}{theirs / ours:8.1f}")
    print(f"\nGlyphs of all kinds of tokens, once per tokenizer: {first_texts:,.1f} ms on either side")


def in_browser(home: Path) -> list[tuple[str, float, float]]:
    """Return what the browser takes to open the trace, and to paint after a jump."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        raise SystemExit("this benchmark needs Chromium (Debian: apt-get install chromium)")
    found: dict[str, tuple[float, float]] = {}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, headless=True, args=FLAGS)
        for name in ("view", "spans"):
            page = browser.new_page(viewport={"width": 1040, "height": 800})
            page.goto((home / f"{name}.html").as_uri())
            page.wait_for_function("window.ready")
            opening = [page.evaluate("window.open_trace()") for _ in range(REPEATS)]
            page.evaluate("window.open_trace()")
            jumping = [page.evaluate(_JUMP, share) for share in (0.9, 0.1, 0.5, 0.3, 0.7)]
            found[name] = statistics.median(opening), statistics.median(jumping)
            page.close()
        browser.close()
    return [
        ("browser: from the data to the painted page", found["view"][0], found["spans"][0]),
        ("browser: painted after a jump", found["view"][1], found["spans"][1]),
    ]


_JUMP = """share => new Promise(done => {
  const inner = document.querySelector('.wb-tv-scroll');
  const box = inner || document.scrollingElement;
  const began = performance.now();
  box.scrollTop = share * box.scrollHeight;
  requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - began)));
})"""


if __name__ == "__main__":
    main()
