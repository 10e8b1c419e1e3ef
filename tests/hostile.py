"""Texts that try to be more than text: to run, to ask the network, to break out, to hide."""

from __future__ import annotations

NETWORK = "http://hostile.invalid/leak"
"""Where the corpus tries to send something."""

HOSTILE: tuple[str, ...] = (
    "<script>window.hit = 1; alert(1)</script>",
    '<img src=x onerror="window.hit=1;alert(1)">',
    f"<img src='{NETWORK}.png'>",
    "<svg onload=window.hit=1><animate onbegin=alert(1) attributeName=x dur=1s>",
    "<iframe srcdoc='<script>parent.hit=1</script>'></iframe>",
    '<a href="javascript:window.hit=1">click</a>',
    "[link](javascript:alert(1)) ![img](http://hostile.invalid/leak.png)",
    "'\"><body onpageshow=window.hit=1 style='background:url(http://hostile.invalid/leak)'>",
    "<!-- an unterminated comment",
    "</style><style>*{display:none !important}</style>",
    "</details></section></main></body></html>",
    "</pre></td></tr></table><h1>broken out</h1>",
    "<plaintext>",
    "<textarea><title><xmp>",
    "]]><![CDATA[<script>window.hit=1</script>",
    "<meta http-equiv=refresh content='0;url=http://hostile.invalid/leak'>",
    "<base href='http://hostile.invalid/'>",
    "<link rel=stylesheet href='http://hostile.invalid/leak.css'>",
    "<form action='http://hostile.invalid/leak'><button autofocus onfocus=window.hit=1>",
    "<math><mtext></mtext><mglyph><style><img src=x onerror=window.hit=1></style></mglyph></math>",
    "{{ 7*7 }}{% raw %}${alert(1)}<%= 7*7 %>#{7*7}",
    "&lt;script&gt;window.hit=1&lt;/script&gt; &#x3C;script>",
    "\u202egnp.exe \u2066\u2067 reversed \u200b\u200f\ufeff",
    "\x1b[2J\x1b]0;title\x07\x1b[31mred",
    "nul\x00 bell\x07 back\x08\x08\x08 escape\x9b31m",
    "\ud800 lone \udfff",
    "Z\u0361\u0300\u0301\u0302" + "\u0334" * 300 + "algo",
    "a" * 1_000_000,
    "(" * 100_000,
    "\n" * 10_000 + "far below",
    "ﷺ" * 2_000 + "𒐫" * 500,
)
"""One of each kind."""

CANARY = "CANARY-7f3a"
"""Stands beside every hostile text, so that a page can be asked whether it shows content."""
