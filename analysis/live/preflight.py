"""The doctor's checks of a connection, as a frame and as a table."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from markupsafe import Markup

from analysis.html import escaped, scoped, table
from slime_bridge.doctor import Report, run_doctor

if TYPE_CHECKING:
    from argparse import Namespace

    import pandas as pd

__all__ = ["Preflight", "run_preflight"]

_TONES = {"ok": "good", "info": "info", "warning": "warning", "error": "serious"}


class Preflight:
    """What the doctor found.

    Parameters
    ----------
    report
        Its report.

    Attributes
    ----------
    report : Report
        As given.
    """

    def __init__(self, report: Report) -> None:
        self.report = report

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return self.report.ok

    @property
    def frame(self) -> pd.DataFrame:
        """One row per finding: ``check``, ``severity``, ``summary``, ``evidence``, ``fix``."""
        import pandas as pd

        columns = ["check", "severity", "summary", "evidence", "fix"]
        return pd.DataFrame(self.report.to_rows(), columns=columns)

    def __repr__(self) -> str:
        return self.report.render()

    def _repr_html_(self) -> str:
        formats = {"check": _word, "severity": _badge, "evidence": _lines, "fix": _lines}
        caption = self.report.summary()
        return str(scoped(table(self.frame, caption=caption, formats=formats, limit=None)))


def _word(check: Any) -> Markup:
    return Markup('<span style="white-space:nowrap">{}</span>').format(escaped(check))


def _badge(severity: Any) -> Markup:
    tone = _TONES.get(str(severity), "")
    return Markup('<span class="wb-badge wb-{}">{}</span>').format(tone, str(severity))


def _lines(text: Any) -> Markup:
    return Markup('<span class="wb-text wb-small">{}</span>').format(escaped(text))


def run_preflight(
    args: Namespace,
    *,
    router_url: str | None,
    prompts: Sequence[Mapping[str, Any]],
    probe: bool,
    timeout: float,
) -> Preflight:
    """Run the doctor.

    Parameters
    ----------
    args
        Arguments of a submission.
    router_url
        Of the router, if one is known.
    prompts
        Rows to render requests over, the first of which is the probe; a made-up prompt without any.
    probe
        Also ask for a generation, and run one task to its end.
    timeout
        Seconds that the probe task may take.
    """
    if router_url is not None:
        parts = urlsplit(router_url)
        args.sglang_router_ip = parts.hostname
        args.sglang_router_port = parts.port or (443 if parts.scheme == "https" else 80)
    args.input_key, args.label_key, args.metadata_key = "prompt", None, "metadata"
    with tempfile.TemporaryDirectory(prefix="workbench-preflight-") as folder:
        source = None
        if prompts:
            source = str(Path(folder) / "prompts.jsonl")
            lines = [json.dumps(dict(row)) for row in prompts]
            Path(source).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return Preflight(run_doctor(args, prompt_data=source, probe=probe, timeout=timeout))
