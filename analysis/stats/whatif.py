"""What another async level, lag bound or early stop would have done: the scheduler on recorded arrivals.

The record gives, per session, how long it took and what it waited, per group what came on top, and per
rollout how long the trainer was busy elsewhere. These are replayed through the bridge's own scheduler and
verdicts (`analysis.stats._scheduler_replay`).

Assumptions, all of which can be set:

- ``contention``: running sessions slow each other down by ``n ** contention``. ``"fit"`` takes the exponent
  under which the recorded sessions' work does not depend on the load at their start, and 0 where the record
  cannot tell: a run whose sessions start in bursts shows them under one load only.
- ``slots``: sessions run at once; ``"fit"``, the default, takes as many as ran whenever one had queued for a
  place, and no limit where none did. None says that there is no limit.
- ``trainer``: a ``sequential`` trainer calls again as long after a delivery as it did in the record; one
  that is ``one_ahead`` (Slime's ``train_async.py``) calls as soon as the batch before last is trained on,
  which takes ``train_seconds``.

The first thing to look at is `WhatIf.calibration`: the same replay under the recorded settings against what
was recorded. Where that is off by more than a few percent the rest is no better.

What no record of one run can tell: trainer and engines that share a machine slow each other down. Where
``running_beside_trainer`` changes and they do share one, the prediction is too good by as much as that costs;
`train_seconds` sets what the trainer then needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from analysis.errors import StatsError
from analysis.stats._arrivals import Arrivals, recorded_arrivals, recorded_slots
from analysis.stats._engine import fitted_contention, works_of
from analysis.stats._scheduler_replay import Replayed, replay_scheduler
from analysis.stats.columns import Floats, flags, floats, nullable, texts
from analysis.stats.configuration import polar_config
from analysis.stats.frames import Frames, as_frames
from slime_bridge.config import PolarSlimeConfig

__all__ = ["WhatIf", "whatif"]


@dataclass(frozen=True, eq=False)
class WhatIf:
    """A run under other settings.

    Attributes
    ----------
    summary
        One row per quantity: `quantity`, `recorded` (missing where the record does not say), `replayed` (the
        recorded settings through the simulation), `simulated` (the new ones), `change` (simulated over
        replayed, minus 1): ``step_seconds`` (mean time between deliveries), ``wait_seconds`` (mean time of a
        call), ``wait_share`` (of the trainer's time), ``groups_per_hour`` (delivered), ``lag_mean``,
        ``lag_max``, ``delivered_groups``, ``rejected_groups``, ``wasted_share`` (session-seconds outside
        delivered groups), ``running_sessions`` (mean), ``running_beside_trainer`` (mean while the trainer is
        busy elsewhere), ``stopped_sessions``.
    rollouts
        One row per rollout of the new settings: `rollout_id`, `requested`, `delivered` (seconds from the
        start), `wait_seconds`, `step_seconds`, `lag_mean`, `lag_max`.
    lags
        One row per lag: `lag`, `recorded`, `replayed`, `simulated` (shares of the delivered groups).
    waste
        One row per fate of the new settings: `fate` (``delivered``, ``unfinished``, or the reason of a
        rejection), `groups`, `sessions`, `session_seconds`.
    calibration
        One row: `step_seconds_recorded`, `step_seconds_replayed`, `relative_error`, and the `contention` and
        `slots` that were used.
    """

    summary: pd.DataFrame
    rollouts: pd.DataFrame
    lags: pd.DataFrame
    waste: pd.DataFrame
    calibration: pd.DataFrame

    @property
    def step_seconds(self) -> float:
        """Predicted mean time between two deliveries, in seconds."""
        return float(self.summary.set_index("quantity").loc["step_seconds", "simulated"])


def whatif(
    run: Any,
    *,
    async_level: int | None = None,
    max_staleness: int | None = None,
    early_stop: bool | None = None,
    settings: Mapping[str, Any] | None = None,
    contention: float | Literal["fit"] = 0.0,
    slots: int | Literal["fit"] | None = "fit",
    trainer: Literal["sequential", "one_ahead"] = "sequential",
    train_seconds: float | None = None,
    worker: str | None = None,
) -> WhatIf:
    """Replay a run's arrivals under other settings.

    Parameters
    ----------
    run
        A loaded run or a mapping of frames, with a journal.
    async_level
        ``polar_max_async_level``; None keeps the recorded one.
    max_staleness
        Largest accepted lag; None takes level plus update interval, as the bridge does.
    early_stop
        Whether the server stops a group's stragglers; None keeps what was recorded.
    settings
        Further settings, such as ``{"fully_async": True, "min_complete_accept_fraction": 0.75}``.
    contention, slots, trainer, train_seconds
        See the module's docstring.
    worker
        Which life of the bridge's worker; by default the one with the most groups.

    Raises
    ------
    StatsError
        If there are no arrivals to replay, or a setting makes no sense.
    """
    frames = as_frames(run)
    arrivals = recorded_arrivals(frames, worker=worker)
    changes = dict(settings or {}) | ({} if async_level is None else {"max_async_level": async_level})
    wanted = polar_config(_as_mapping(arrivals.config), changes)
    exponent = _exponent(arrivals, contention)
    places = recorded_slots(arrivals.jobs) if slots == "fit" else slots
    _check(wanted, exponent, places, trainer, train_seconds, max_staleness)
    stopped = any(outcome.early_stopped for job in arrivals.jobs for outcome in job.outcomes)
    works = _works(arrivals, exponent)
    common: dict[str, Any] = {"contention": exponent, "slots": places, "works": works}
    before = replay_scheduler(
        arrivals,
        arrivals.config,
        max_staleness=arrivals.config.max_staleness,
        early_stop=stopped,
        busy=_trainer(arrivals, trainer, train_seconds),
        **common,
    )
    after = replay_scheduler(
        arrivals,
        wanted,
        max_staleness=wanted.max_staleness if max_staleness is None else max_staleness,
        early_stop=stopped if early_stop is None else early_stop,
        busy=_trainer(arrivals, trainer, train_seconds),
        **common,
    )
    recorded = _recorded(frames, arrivals)
    return WhatIf(
        summary=_summary(recorded, _quantities(before), _quantities(after)),
        rollouts=_rollouts(after),
        lags=_lags(_recorded_lags(frames), before, after),
        waste=_waste(after),
        calibration=_calibration(recorded, before, exponent, places),
    )


def _as_mapping(config: PolarSlimeConfig) -> dict[str, Any]:
    return config.describe()


def _exponent(arrivals: Arrivals, contention: float | Literal["fit"]) -> float:
    if contention != "fit":
        return float(contention)
    starts, ends = _intervals(arrivals)
    return fitted_contention(starts, ends)


def _intervals(arrivals: Arrivals) -> tuple[Floats, Floats]:
    starts = [job.started + job.waits for job in arrivals.jobs]
    ends = [job.started + job.waits + job.services for job in arrivals.jobs]
    return np.concatenate(starts), np.concatenate(ends)


def _works(arrivals: Arrivals, contention: float) -> list[list[float]]:
    works = works_of(*_intervals(arrivals), contention)
    services = np.concatenate([job.services for job in arrivals.jobs])
    works = np.where(np.isnan(works), services, works)
    ends = np.cumsum([len(job.services) for job in arrivals.jobs])
    return [part.tolist() for part in np.split(works, ends[:-1])]


def _check(
    config: PolarSlimeConfig,
    contention: float,
    slots: int | None,
    trainer: str,
    train_seconds: float | None,
    max_staleness: int | None,
) -> None:
    if config.max_async_level < 1:
        raise StatsError(f"async_level must be at least 1, got {config.max_async_level}")
    if not 0 <= contention <= 1 or (slots is not None and slots < 1):
        raise StatsError(f"contention must be 0 to 1 and slots at least 1, got {contention} and {slots}")
    if max_staleness is not None and max_staleness < 0:
        raise StatsError(f"max_staleness must be at least 0, got {max_staleness}")
    if trainer not in ("sequential", "one_ahead"):
        raise StatsError(f"trainer is 'sequential' or 'one_ahead', got {trainer!r}")
    if trainer == "one_ahead" and train_seconds is None:
        raise StatsError("a trainer that is one_ahead needs train_seconds: the record cannot tell them apart")


class _Sequential:
    """A trainer that is busy after each delivery for as long as it was in the record."""

    def __init__(self, gaps: Floats, fixed: float | None) -> None:
        self._gaps, self._fixed = gaps, fixed

    def __call__(self, number: int, delivered: float) -> float:
        if self._fixed is not None:
            return self._fixed
        if number < len(self._gaps):
            return float(self._gaps[number])
        return float(self._gaps.mean()) if len(self._gaps) else 0.0


class _OneAhead:
    """A trainer that collects the next batch while it trains on the last."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._free = 0.0

    def __call__(self, number: int, delivered: float) -> float:
        wait = max(0.0, self._free - delivered)
        self._free = delivered + wait + self._seconds
        return wait


def _trainer(arrivals: Arrivals, trainer: str, seconds: float | None) -> Any:
    if trainer == "one_ahead" and seconds is not None:
        return _OneAhead(seconds)
    return _Sequential(arrivals.gaps, seconds)


def _steps(delivered: Floats, first: float) -> Floats:
    """Return the time between deliveries; the first counts from the first call."""
    return np.diff(np.concatenate([[first], delivered]))


def _recorded(frames: Frames, arrivals: Arrivals) -> dict[str, float]:
    requested = np.array([rollout.requested for rollout in arrivals.rollouts])
    delivered = np.array([rollout.delivered for rollout in arrivals.rollouts])
    steps = _steps(delivered, float(requested[0]))
    lags = _recorded_lags(frames)
    counts = sum(rollout.wanted for rollout in arrivals.rollouts)
    state = texts(frames.groups, "state")
    span = float(delivered[-1] - requested[0])
    return {
        "step_seconds": float(steps.mean()),
        "wait_seconds": float((delivered - requested).mean()),
        "wait_share": float((delivered - requested).sum()) / span if span > 0 else np.nan,
        "groups_per_hour": 3600 * counts / span if span > 0 else np.nan,
        "lag_mean": float(lags.mean()) if len(lags) else np.nan,
        "lag_max": float(lags.max()) if len(lags) else np.nan,
        "delivered_groups": float(counts),
        "rejected_groups": float((state == "rejected").sum()),
    }


def _recorded_lags(frames: Frames) -> Floats:
    lags = floats(frames.groups, "staleness")
    return lags[~np.isnan(lags) & flags(frames.groups, "accepted")]  # those too old for delivery have one too


def _quantities(replayed: Replayed) -> dict[str, float]:
    requested = np.array([rollout.requested for rollout in replayed.rollouts])
    delivered = np.array([rollout.delivered for rollout in replayed.rollouts])
    lags = np.array([lag[0] for rollout in replayed.rollouts for lag in rollout.lags], dtype=np.float64)
    span = float(delivered[-1] - requested[0])
    rejected = np.array(list(replayed.rejected.values())).reshape(-1, 3).sum(axis=0)
    beside, busy = replayed.beside_trainer
    seconds = replayed.delivered[2] + rejected[2] + replayed.unfinished[2]
    return {
        "step_seconds": float(_steps(delivered, float(requested[0])).mean()),
        "wait_seconds": float((delivered - requested).mean()),
        "wait_share": float((delivered - requested).sum()) / span if span > 0 else np.nan,
        "groups_per_hour": 3600 * len(lags) / span if span > 0 else np.nan,
        "lag_mean": float(lags.mean()),
        "lag_max": float(lags.max()),
        "delivered_groups": float(len(lags)),
        "rejected_groups": float(rejected[0]),
        "wasted_share": 1 - replayed.delivered[2] / seconds if seconds > 0 else np.nan,
        "running_sessions": replayed.busy_seconds / span if span > 0 else np.nan,
        "running_beside_trainer": beside / busy if busy > 0 else np.nan,
        "stopped_sessions": replayed.stopped[0],
    }


def _summary(recorded: dict[str, float], before: dict[str, float], after: dict[str, float]) -> pd.DataFrame:
    names = list(after)
    old, new = np.array([before[n] for n in names]), np.array([after[n] for n in names])
    change = np.divide(new - old, old, out=np.full(len(names), np.nan), where=old != 0)
    return nullable(
        {
            "quantity": np.array(names, dtype=object),
            "recorded": np.array([recorded.get(n, np.nan) for n in names]),
            "replayed": old,
            "simulated": new,
            "change": change,
        }
    )


def _rollouts(replayed: Replayed) -> pd.DataFrame:
    served = replayed.rollouts
    requested = np.array([rollout.requested for rollout in served])
    delivered = np.array([rollout.delivered for rollout in served])
    lags = [np.array([lag[0] for lag in rollout.lags]) for rollout in served]
    return nullable(
        {
            "rollout_id": np.array([rollout.rollout_id for rollout in served], dtype=np.int64),
            "requested": requested,
            "delivered": delivered,
            "wait_seconds": delivered - requested,
            "step_seconds": _steps(delivered, float(requested[0])),
            "lag_mean": np.array([values.mean() for values in lags], dtype=np.float64),
            "lag_max": np.array([values.max() for values in lags], dtype=np.int64),
        }
    )


def _lags(recorded: Floats, before: Replayed, after: Replayed) -> pd.DataFrame:
    columns = {"recorded": recorded}
    for name, replayed in (("replayed", before), ("simulated", after)):
        columns[name] = np.array([lag[0] for r in replayed.rollouts for lag in r.lags], dtype=np.float64)
    values = np.unique(np.concatenate(list(columns.values())))
    shares = {
        name: np.array([(own == v).mean() if len(own) else np.nan for v in values], dtype=np.float64)
        for name, own in columns.items()
    }
    return nullable({"lag": values.astype(np.int64), **shares})


def _waste(replayed: Replayed) -> pd.DataFrame:
    rows = {"delivered": replayed.delivered, **replayed.rejected, "unfinished": replayed.unfinished}
    table = np.array(list(rows.values()))
    return nullable(
        {
            "fate": np.array(list(rows), dtype=object),
            "groups": table[:, 0].astype(np.int64),
            "sessions": table[:, 1].astype(np.int64),
            "session_seconds": table[:, 2],
        }
    )


def _calibration(
    recorded: dict[str, float], before: Replayed, contention: float, slots: int | None
) -> pd.DataFrame:
    actual, replayed = recorded["step_seconds"], _quantities(before)["step_seconds"]
    return nullable(
        {
            "step_seconds_recorded": np.array([actual]),
            "step_seconds_replayed": np.array([replayed]),
            "relative_error": np.array([replayed / actual - 1 if actual > 0 else np.nan]),
            "contention": np.array([contention]),
            "slots": np.array([np.nan if slots is None else float(slots)]),
        }
    )
