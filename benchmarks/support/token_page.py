"""Pages that show one trace: with the token view's own script, and as one span per token."""

from __future__ import annotations

import base64
import json
from typing import Any

from analysis.explorers.assets import script, styles
from analysis.explorers.token_view import layout_of, texts_of
from analysis.html.token_spans import token_spans_html
from analysis.trace_tokens import TraceTokens

_PAGE = """<!doctype html><meta charset="utf-8"><style>{style}</style>
<body style="margin:0;width:1000px"><div class="wb" id="place"></div><script type="module">{code}</script>"""

_VIEW = """
const state = STATE;
const unpack = (value) => {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return value;
  if ("bytes" in value && Object.keys(value).length === 1)
    return new DataView(Uint8Array.from(atob(value.bytes), (c) => c.charCodeAt(0)).buffer);
  return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, unpack(inner)]));
};
const values = unpack(state), handlers = {};
const fire = (event, ...all) => (handlers[event] || []).forEach((handler) => handler(...all));
const model = {
  get: (name) => values[name],
  set: (name, value) => { values[name] = value; fire(`change:${name}`); },
  save_changes() {},
  on: (event, handler) => (handlers[event] = handlers[event] || []).push(handler),
  off() {},
  send: () => { window.asked = (window.asked || 0) + 1; },
};
const view = await import(URL.createObjectURL(new Blob([CODE], { type: "text/javascript" })));
window.open_trace = () => new Promise((done) => {
  const place = document.getElementById("place");
  place.replaceChildren();
  const began = performance.now();
  view.default.render({ model, el: place });
  place.getBoundingClientRect();
  requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - began)));
});
window.ready = true;
"""

_SPANS = """
const html = HTML;
window.open_trace = () => new Promise((done) => {
  const place = document.getElementById("place");
  place.replaceChildren();
  const began = performance.now();
  place.innerHTML = html;
  place.getBoundingClientRect();
  requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - began)));
});
window.ready = true;
"""


def view_page(tokens: TraceTokens) -> str:
    """Return a page whose `open_trace()` opens the token view and tells the milliseconds until it is seen."""
    state = {
        "trace": layout_of(tokens, 1),
        "page": texts_of(tokens, 0, 1024, 1),
        "overlay": "logprob",
        "cursor": 0,
        "chosen": [],
        "lines_in_sight": 22,
        "note": "",
        "problem": "",
    }
    code = _VIEW.replace("STATE", _literal(_packed(state))).replace("CODE", _literal(script("token_view.js")))
    return _PAGE.replace("{style}", styles()).replace("{code}", code)


def spans_page(tokens: TraceTokens) -> str:
    """Return a page whose `open_trace()` shows the same tokens as HTML, all of them."""
    html = str(token_spans_html(tokens, "logprob", limit=len(tokens)))
    return _PAGE.replace("{style}", styles()).replace("{code}", _SPANS.replace("HTML", _literal(html), 1))


def _literal(value: Any) -> str:
    return json.dumps(value).replace("</", "<\\/")


def _packed(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, dict):
        return {name: _packed(inner) for name, inner in value.items()}
    return value
