"""One look for everything that is shown as HTML: reports, explorers and what a notebook shows of an object.

All rules hold below the class ``wb`` only, and all colours are CSS variables, so that a page and a notebook
cell look alike in light and in dark: as JupyterLab or VS Code say where they do, as the browser prefers
elsewhere. The colours of data are those of the figures (`analysis.plots.style`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from markupsafe import Markup

from analysis.html.token_colours import LEVEL_COLOURS

__all__ = ["SEVERITIES", "TOKENS", "css", "scoped"]

TOKENS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "ground": ("#ffffff", "#1b1d21"),
        "raised": ("#f5f5f2", "#26292f"),
        "line": ("#dededa", "#3a3d43"),
        "ink": ("#1d1f22", "#e6e6e6"),
        "muted": ("#5c6066", "#a8a8a8"),
        "link": ("#005f9e", "#78bdf5"),
        "focus": ("#0072b2", "#78bdf5"),
        "serious": ("#a8231b", "#ff9a87"),
        "serious-ground": ("#fbe9e7", "#3d2421"),
        "warning": ("#7d4b00", "#f2bd4b"),
        "warning-ground": ("#fbf0d9", "#362c17"),
        "info": ("#0b5584", "#86c8f5"),
        "info-ground": ("#e6f0f8", "#1d2d3a"),
        "good": ("#0b6140", "#5cd6a8"),
        "good-ground": ("#e3f3ea", "#17302a"),
        "blue": ("#0072b2", "#3b9ce2"),
        "orange": ("#e69f00", "#f0b429"),
        "green": ("#009e73", "#1fc796"),
        "vermillion": ("#d55e00", "#ff7a45"),
        "purple": ("#cc79a7", "#e79cc6"),
        "sky": ("#56b4e9", "#a3daff"),
        "grey": ("#b5b5b5", "#757575"),
    }
)
"""Colours by name, on a light and on a dark ground; in CSS ``var(--wb-<name>)``."""

SEVERITIES = ("serious", "warning", "info", "good")
"""Names of states that have a colour: ``wb-<name>`` beside ``wb-badge``."""

_FONTS = {
    "sans": 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif',
    "mono": 'ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace',
}

# More specific than the bare class: what the host says wins over what the browser prefers.
_LIGHT = ('[data-jp-theme-light="true"] .wb', "body.vscode-light .wb")
_DARK = ('[data-jp-theme-light="false"] .wb', "body.vscode-dark .wb")
_SHEETS = ("workbench.css", "transcript.css", "tokens.css")


@cache
def css() -> str:
    """Return the rules for everything below the class ``wb``.

    Elements with the class ``wb-on-light`` or ``wb-on-dark`` are shown on that ground only.
    """
    fonts = "".join(f"--wb-{name}:{value};" for name, value in _FONTS.items())
    parts = [
        f".wb{{{fonts}}}",
        _ground(".wb", 0),
        f"@media (prefers-color-scheme:dark){{{_ground('.wb', 1)}}}",
        _ground(",".join(_LIGHT), 0),
        _ground(",".join(_DARK), 1),
        *(files("analysis.html").joinpath(sheet).read_text("utf-8") for sheet in _SHEETS),
    ]
    return "\n".join(parts)


def scoped(markup: Markup) -> Markup:
    """Return markup with everything that it needs to look right by itself, as in a notebook cell.

    Parameters
    ----------
    markup
        Of this package.
    """
    return Markup('<div class="wb"><style>{}</style>{}</div>').format(Markup(css()), markup)


def _ground(selector: str, place: int) -> str:
    colours = "".join(f"--wb-{name}:{pair[place]};" for name, pair in {**TOKENS, **LEVEL_COLOURS}.items())
    scheme, on_light, on_dark = (("light", "block", "none"), ("dark", "none", "block"))[place]
    return f"{selector}{{{colours}--wb-on-light:{on_light};--wb-on-dark:{on_dark};color-scheme:{scheme}}}"
