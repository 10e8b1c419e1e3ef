"""A live view: one widget that shows markup made elsewhere, brought up to date from any thread.

The same widget is shown wherever its owner is displayed, so showing it again adds nothing that has to be
cleaned up. Without ipywidgets, or outside a notebook, there is no widget and the owner shows itself as it
stands.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from markupsafe import Markup

__all__ = ["LiveView", "in_notebook"]

logger = logging.getLogger(__name__)


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    try:
        from IPython import get_ipython
    except ModuleNotFoundError:
        return False
    shell = get_ipython()  # type: ignore[no-untyped-call, unused-ignore]
    return shell is not None and getattr(shell, "kernel", None) is not None


class LiveView:
    """The widget of one owner.

    Parameters
    ----------
    render
        Returns the markup of the present state.
    """

    def __init__(self, render: Callable[[], Markup]) -> None:
        self._render = render
        self._lock = threading.Lock()
        self._widget: Any = None
        self._failed = False

    @property
    def shown(self) -> bool:
        """Whether there is a widget to keep up to date."""
        return self._widget is not None

    def mimebundle(self, **kwargs: Any) -> dict[str, Any]:
        """Return the widget's bundle for a notebook to show; empty where there is none."""
        with self._lock:
            if self._widget is None and in_notebook():
                try:
                    from ipywidgets import HTML
                except ModuleNotFoundError:
                    return {}
                self._widget = HTML(value=str(self._render()))
            if self._widget is None:
                return {}
            bundle = self._widget._repr_mimebundle_(**kwargs)
        return dict(bundle[0] if isinstance(bundle, tuple) else bundle or {})

    def refresh(self) -> None:
        """Bring the widget up to date."""
        if self._widget is None or self._failed:
            return
        try:
            value = str(self._render())
            with self._lock:
                if self._widget is not None:
                    self._widget.value = value
        except Exception:  # a view that cannot be drawn must not end what it shows; said once, in the log
            self._failed = True
            logger.exception("A live view could not be drawn; it stays as it is")

    def close(self) -> None:
        """Take the widget away; harmless to repeat."""
        with self._lock:
            widget, self._widget = self._widget, None
            if widget is not None:
                widget.close()
