"""Pieces of HTML that reports, explorers and notebook displays share.

Every function returns `markupsafe.Markup` in which all text of a run is escaped and visible. Nothing here
runs a script or asks the network for anything.

- `style`: the one style sheet, with colours for light and dark grounds;
- `text`: hostile text made harmless, and the Jinja environment that does so by itself;
- `tables`: frames as tables;
- `figures`: figures as pictures inside the page (imports Matplotlib).
"""

from __future__ import annotations

from analysis.html.style import css, scoped
from analysis.html.tables import facts, table
from analysis.html.text import clipped, escaped, passing, template, visible

__all__ = ["clipped", "css", "escaped", "facts", "passing", "scoped", "table", "template", "visible"]
