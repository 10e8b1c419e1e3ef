"""What findings, figures and tables of a report are made from: statistics of one run, computed once.

Each is computed when it is first asked for. What reads tokens looks at a sample of whole rollouts, spread
evenly over the run: of a run of a thousand rollouts the token arrays are gigabytes. Whole ones, since there
are estimators that scale advantages over all groups of a rollout.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from analysis.report.series import rollout_series
from analysis.stats.columns import Ints, flags, floats
from analysis.stats.fidelity import Audit, audit
from analysis.stats.frames import Frames, as_frames
from analysis.stats.rejections import (
    Contamination,
    Ledger,
    Survivorship,
    Waste,
    ZeroSignal,
    contamination,
    ledger,
    survivorship,
    waste,
    zero_signal,
)
from analysis.stats.staleness import Lag, OffPolicy, lag, off_policy
from analysis.stats.timing import Timing, timing
from analysis.stats.token_tables import TokenTable

__all__ = ["Measures"]

_TOKEN_TRACES = 640
_LEAST_ROLLOUTS = 3


class Measures:
    """The statistics of one run.

    Parameters
    ----------
    run
        A loaded run, or a mapping of frames; of one run only.
    token_traces
        About how many traces to read tokens of; at least those of three rollouts are.
    """

    def __init__(self, run: Any, *, token_traces: int = _TOKEN_TRACES) -> None:
        self.run = run
        self.frames = as_frames(run)
        self._token_traces = token_traces

    @cached_property
    def series(self) -> pd.DataFrame:
        """One row per training rollout; see `analysis.report.series.rollout_series`."""
        return rollout_series(self.frames, self.lag, self.zero_signal, self.timing)

    @cached_property
    def ledger(self) -> Ledger:
        """Where every group and session ended."""
        return ledger(self.frames)

    @cached_property
    def zero_signal(self) -> ZeroSignal:
        """Groups without variance."""
        return zero_signal(self.frames)

    @cached_property
    def waste(self) -> Waste:
        """What was paid for and not trained on."""
        return waste(self.frames)

    @cached_property
    def contamination(self) -> Contamination:
        """Zeros that the infrastructure gave."""
        return contamination(self.frames)

    @cached_property
    def survivorship(self) -> Survivorship:
        """How what is missing differs from what is there."""
        return survivorship(self.frames, replicates=200)

    @cached_property
    def lag(self) -> Lag:
        """How old the data was."""
        return lag(self.frames)

    @cached_property
    def timing(self) -> Timing:
        """Where the time went."""
        return timing(self.frames)

    @cached_property
    def token_frames(self) -> Frames:
        """The frames of the rollouts whose tokens are read; all frames where the run was given as frames."""
        if not callable(getattr(self.run, "filter", None)):
            return self.frames
        part = self.run.filter(evaluation=False, rollout_id=self._sampled_rollouts())
        tables: dict[str, Any] = {name: getattr(part, name)() for name in ("rollouts", "groups", "sessions")}
        traces = part.traces()
        # Records of the whole run stay: the settings are among them, and they belong to no rollout.
        tables |= {"trace": traces, "event": self.frames.events, "tokens": TokenTable.of_run(part, traces)}
        return as_frames(tables)

    @cached_property
    def off_policy(self) -> OffPolicy:
        """How far the policy moved between sampling and training; over the sampled rollouts."""
        return off_policy(self.token_frames)

    @cached_property
    def audit(self) -> Audit:
        """Whether tokens and numbers can be trusted; over the sampled rollouts."""
        return audit(self.token_frames)

    @property
    def token_sample(self) -> tuple[int, int]:
        """Training rollouts whose tokens are read, and training rollouts in all."""
        return len(_rollouts(self.token_frames)), len(_rollouts(self.frames))

    def _sampled_rollouts(self) -> list[int]:
        ids = _rollouts(self.frames)
        per_rollout = len(self.frames.traces) / max(len(ids), 1)
        count = min(len(ids), max(_LEAST_ROLLOUTS, int(self._token_traces // max(per_rollout, 1.0))))
        chosen = np.linspace(0, len(ids) - 1, count).round().astype(np.int64)
        return sorted(set(ids[chosen].tolist()))


def _rollouts(frames: Frames) -> Ints:
    """Return the numbers of the training rollouts that have traces."""
    number = floats(frames.traces, "rollout_id")[~flags(frames.traces, "evaluation")]
    return np.unique(number[~np.isnan(number)]).astype(np.int64)
