"""Several trainings under the same seed, one beside the other."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from analysis.html import template
from analysis.live.curves import COLOURS, line_chart
from analysis.live.progress_view import with_style
from analysis.live.training import TrainingHandle, TrainingResult
from analysis.live.view import LiveView

if TYPE_CHECKING:
    from analysis.run import Run

__all__ = ["TrainingsSideBySide"]

_CURVES = {
    "reward": "mean reward, training",
    "held-out reward": "mean reward, held out",
    "policy lag": "policy lag",
}

_ROWS = template(
    """
<table class="wb-table"><thead><tr><th scope="col">training</th><th scope="col">state</th>
<th scope="col" class="wb-num">rollouts</th><th scope="col" class="wb-num">reward</th>
<th scope="col" class="wb-num">held out</th></tr></thead><tbody>
{% for row in rows %}<tr><th scope="row"><span class="wb-live-keys">
<span style="--key:var(--wb-{{ row.colour }})">{{ row.label }}</span></span></th>
<td><span class="wb-badge wb-{{ row.tone }}">{{ row.state }}</span></td>
<td class="wb-num">{{ row.rollouts }}</td><td class="wb-num">{{ row.reward }}</td>
<td class="wb-num">{{ row.held_out }}</td></tr>{% endfor %}</tbody></table>
<div class="wb-live-charts">{% for chart in charts %}{{ chart }}{% endfor %}</div>
"""
)
_TONES = {"running": "info", "done": "good", "stopped": "warning", "failed": "serious"}


class TrainingsSideBySide(Sequence[TrainingHandle]):
    """Trainings that differ in their estimator only; a sequence of their handles.

    Parameters
    ----------
    handles
        The trainings.
    """

    def __init__(self, handles: Sequence[TrainingHandle]) -> None:
        self._handles = handles
        self._view = LiveView(self.html)

    def __len__(self) -> int:
        return len(self._handles)

    def __getitem__(self, place: Any) -> Any:
        return self._handles[place]

    def __iter__(self) -> Iterator[TrainingHandle]:
        return iter(self._handles)

    @property
    def done(self) -> bool:
        """Whether all have ended."""
        return all(handle.done for handle in self._handles)

    @property
    def run(self) -> Run:
        """All of them as one `Run`; the column ``run`` holds their labels."""
        from analysis.loading import load

        return load({handle.label: handle.folder for handle in self._handles}, index=False, progress=False)

    def wait(self, timeout: float | None = None, *, progress: bool = False) -> bool:
        """Wait for all of them; see `LiveHandle.wait`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for handle in self._handles:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            if not handle.wait(left, progress=progress):
                return False
        return True

    def result(self, timeout: float | None = None) -> list[TrainingResult]:
        """Wait for all of them and return their results; see `LiveHandle.result`."""
        self.wait(timeout)
        return [handle.result(0.0) for handle in self._handles]

    def __await__(self) -> Generator[Any, None, list[TrainingResult]]:
        return self._awaited().__await__()

    async def _awaited(self) -> list[TrainingResult]:
        return [await handle for handle in self._handles]

    def cancel(self) -> None:
        """Let all of them end early; returns at once."""
        for handle in self._handles:
            handle.cancel()

    def refresh(self) -> None:
        """Bring the live view up to date."""
        self._view.refresh()

    # Display

    def html(self) -> Markup:
        """Return the present state as HTML that looks right by itself."""
        snapshots = {handle.label: handle.progress for handle in self._handles}
        colours = {label: COLOURS[place % len(COLOURS)] for place, label in enumerate(snapshots)}
        rows = []
        for handle in self._handles:
            curves, head = snapshots[handle.label].curves, handle.headline()
            rows.append(
                {
                    "label": handle.label,
                    "colour": colours[handle.label],
                    "state": head.state,
                    "tone": _TONES[head.tone],
                    "rollouts": len(curves.get("reward", ())),
                    "reward": _latest(curves.get("reward")),
                    "held_out": _latest(curves.get("held-out reward")),
                }
            )
        charts = [
            line_chart(title, series, colours=colours)
            for name, title in _CURVES.items()
            if (series := {k: s.curves[name] for k, s in snapshots.items() if s.curves.get(name)})
        ]
        return with_style(Markup(_ROWS.render(rows=rows, charts=charts).strip()))

    def show(self) -> None:
        """Show the live view; see `LiveHandle.show`."""
        if self._view.mimebundle():
            from IPython.display import display

            display(self)
        else:
            sys.stdout.write(repr(self) + "\n")

    def __repr__(self) -> str:
        return "\n".join(handle.text() for handle in self._handles)

    def _repr_html_(self) -> str:
        return str(self.html())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {**self._view.mimebundle(), "text/plain": repr(self), "text/html": self._repr_html_()}


def _latest(points: Any) -> str:
    return f"{points[-1].value:.3f}" if points else "—"
