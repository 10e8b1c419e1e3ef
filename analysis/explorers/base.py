"""What all explorers have in common: a widget, a state, errors that are seen, and an end that leaves nothing.

Run again, a cell gets its explorer back as it was left: the new one takes over the state of its predecessor,
which is closed. Predecessors are found by the explorer's kind, its run, and a name, which in JupyterLab is
the cell's own id.
"""

from __future__ import annotations

import logging
import traceback
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import wraps
from typing import Any, ClassVar

import ipywidgets as W
import pandas as pd
import traitlets
from markupsafe import Markup, escape

from analysis.explorers.assets import styles
from analysis.explorers.cells import cell_name
from analysis.explorers.state import SelectionState

__all__ = ["Explorer", "close_widget", "open_explorers"]

logger = logging.getLogger(__name__)

_open: weakref.WeakValueDictionary[tuple[Any, ...], Explorer] = weakref.WeakValueDictionary()


class Explorer(ABC):
    """Base of all explorers.

    A subclass makes its widgets in `_build`, which returns the one to show. There it ties handlers to widgets
    and to the state with `observe`, `on_click` and `on_message`, so that they are guarded and end with
    it. What else must end goes to `cleanup`.

    Parameters
    ----------
    run
        A loaded run or a mapping of frames.
    state
        A selection to share with other explorers; a new one if None.
    name
        Tells explorers of one run apart. An explorer of the same kind, run and name is replaced, and its
        state is taken over where no `state` is given. By default the id of the notebook cell; outside of a
        notebook nothing is replaced without a name.
    part_of
        The explorer that shows this one among others: it lends its state, and closes this one with itself.
    estimators
        Estimators of your own, by label or as a list; see `SelectionState`.
    **options
        Passed on to `_build`.

    Attributes
    ----------
    widget
        An ipywidgets widget.
    state
        The selection.
    closed
        Whether `close` was called.
    """

    kind: ClassVar[str] = "explorer"

    def __init__(
        self,
        run: Any,
        *,
        state: SelectionState | None = None,
        name: str | None = None,
        part_of: Explorer | None = None,
        estimators: Mapping[str, Any] | Iterable[Any] | None = None,
        **options: Any,
    ) -> None:
        self.cleanup = ExitStack()
        self.closed = False
        self._failures: dict[str, str] = {}
        label = name
        if part_of is not None:
            state, label = part_of.state, None
            part_of.cleanup.callback(self.close)
        elif name is None:
            label = cell_name(self.kind)
        self._place = None if label is None else (self.kind, _identity(run), label)
        predecessor = None if self._place is None else _open.get(self._place)
        before = None if predecessor is None else predecessor.snapshot()
        if predecessor is not None:
            predecessor.close()
        if state is None:
            state = SelectionState(run, estimators=estimators)
            if before is not None:
                state.restore(before["selected"])
        self.state: SelectionState = state
        self._errors = W.HTML()
        self._errors.layout.display = "none"
        try:
            shown = self._build(**options)
        except BaseException:
            self.close()
            raise
        # A part is inside a whole that brings the styles.
        style = (
            [] if part_of is not None else [W.HTML(f"<style>{styles()}</style>", layout={"display": "none"})]
        )
        self.widget: W.DOMWidget = W.VBox([*style, self._errors, shown])
        self.widget.add_class("wb")
        self.widget.add_class("wb-explorer")
        if before is not None:
            self.guarded(self.restore_view, "restore")(before["view"])
        if self._place is not None:
            _open[self._place] = self

    @property
    def run(self) -> Any:
        """What is explored."""
        return self.state.run

    @property
    def selection(self) -> pd.DataFrame:
        """What is selected, as rows of its table; see `SelectionState.selection`."""
        return self.state.selection()

    def close(self) -> None:
        """End observers, comms and figures; the state stays usable. Twice is once."""
        if self.closed:
            return
        self.closed = True
        self.cleanup.close()
        for part in list(vars(self).values()):  # what is not shown has a comm as well
            if isinstance(part, W.Widget):
                close_widget(part)
        if self._place is not None and _open.get(self._place) is self:
            del _open[self._place]

    def snapshot(self) -> dict[str, Any]:
        """Return what a successor takes over."""
        return {"selected": self.state.values(), "view": self.view()}

    # For subclasses

    @abstractmethod
    def _build(self, *nothing: Any, **options: Any) -> W.DOMWidget:
        """Make the widgets, and return the one to show; takes options by name."""

    def view(self) -> dict[str, Any]:
        """Return what is set in this explorer beside the selection: sorting, tab, overlay."""
        return {}

    def restore_view(self, view: Mapping[str, Any]) -> None:  # noqa: B027  (many have nothing to set)
        """Set what a predecessor's `view` returned; it may lack names."""

    def refresh(self) -> None:  # noqa: B027  (one may show nothing of the run)
        """Show what the run has now, after `Run.refresh`."""

    def observe(
        self, source: traitlets.HasTraits, handler: Callable[[Any], Any], names: str | list[str]
    ) -> None:
        """Call a handler, guarded, when traits change, until this explorer is closed."""
        callback = self.guarded(handler)
        source.observe(callback, names)
        self.cleanup.callback(source.unobserve, callback, names)

    def on_click(self, button: W.Button, handler: Callable[[Any], Any]) -> None:
        """Call a handler, guarded, when a button is pressed, until this explorer is closed."""
        callback = self.guarded(handler)
        button.on_click(callback)
        self.cleanup.callback(button.on_click, callback, remove=True)

    def on_message(self, widget: W.Widget, handler: Callable[[Any, Any, Any], Any]) -> None:
        """Call a handler, guarded, with (widget, content, buffers) of messages from the browser."""
        callback = self.guarded(handler)
        widget.on_msg(callback)
        self.cleanup.callback(widget.on_msg, callback, remove=True)

    def guarded(self, function: Callable[..., Any], label: str | None = None) -> Callable[..., Any]:
        """Wrap a callback: what it raises is logged and shown with its traceback, until it succeeds again.

        Parameters
        ----------
        function
            A callback of a widget or of the state.
        label
            What the message calls it; the function's name by default.
        """
        called = label or getattr(function, "__name__", repr(function)).strip("_")

        @wraps(function)
        def callback(*args: Any, **kwargs: Any) -> Any:
            if self.closed:
                return None
            try:
                result = function(*args, **kwargs)
            except Exception as exc:  # a callback has no caller: what it raises is shown where it was caused
                logger.exception("%s failed in %s", called, type(self).__name__)
                self.show_error(called, exc)
                return None
            if self._failures.pop(called, None) is not None:
                self._show_failures()
            return result

        return callback

    def show_error(self, label: str, error: BaseException) -> None:
        """Show an error above the explorer."""
        text = "".join(traceback.format_exception(error))
        self._failures[label] = Markup(
            '<div class="wb-error" role="alert"><strong>{}</strong> {}'
            "<details><summary>Traceback</summary><pre>{}</pre></details></div>"
        ).format(type(error).__name__, str(error), text)
        self._show_failures()

    def error_text(self) -> str:
        """Return the HTML of the errors that are shown; empty if there are none."""
        return str(self._errors.value)

    def _show_failures(self) -> None:
        self._errors.value = str(Markup("").join(self._failures.values()))
        self._errors.layout.display = None if self._failures else "none"

    # Display

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        if self.closed:
            text = "This explorer was closed; run its cell again."
            return {"text/plain": text, "text/html": f"<em>{escape(text)}</em>"}
        return self.widget._repr_mimebundle_(**kwargs)

    def __repr__(self) -> str:
        chosen = ", ".join(f"{name}={value!r}" for name, value in self.state.values().items() if value)
        closed = ", closed" if self.closed else ""
        return f"<{type(self).__name__}: {chosen or 'nothing selected'}{closed}>"


def close_widget(widget: W.Widget) -> None:
    """Close a widget with all that it is made of: its children, layout and style have comms of their own."""
    for child in getattr(widget, "children", ()):
        close_widget(child)
    for name in ("layout", "style"):
        part = getattr(widget, name, None)
        if isinstance(part, W.Widget):
            part.close()
    widget.close()


def open_explorers() -> list[Explorer]:
    """Return the named explorers that are open."""
    return list(_open.values())


def _identity(run: Any) -> Any:
    """Return what stays the same when a cell loads the same run again."""
    store = getattr(run, "store", None)
    if store is None:
        return None
    return tuple(str(root.folder) for root in store.roots)
