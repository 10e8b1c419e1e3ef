"""What the bridge was told, as its journals say: configurations, limits, and the estimator in use."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from analysis.errors import StatsError
from analysis.stats.columns import floats, json_cells, texts
from analysis.stats.frames import Frames
from analysis.stats.recomputation import recompute
from slime_bridge.advantages import LeaveOneTrajectoryOut, RewardBatch, get_estimator
from slime_bridge.config import PolarSlimeConfig
from slime_bridge.errors import AdvantageError

__all__ = ["configurations", "estimator_in_use", "polar_config"]

_DERIVED = frozenset({"max_groups_in_flight", "max_sessions_in_flight", "max_staleness", "fingerprint"})
_CLOSE = 1e-4


def configurations(frames: Frames) -> dict[str | None, Mapping[str, Any]]:
    """Return the configuration by worker, in order of opening; empty where no journal was loaded."""
    opened = frames.events[(frames.events["event"] == "journal_opened").fillna(False).to_numpy(dtype=bool)]
    found = {}
    for worker, data in zip(texts(opened, "worker"), json_cells(opened, "data"), strict=True):
        config = data.get("config")
        if isinstance(config, Mapping):
            found[worker] = config
    return found


def polar_config(
    recorded: Mapping[str, Any] | None, changes: Mapping[str, Any] | None = None
) -> PolarSlimeConfig:
    """Return a recorded configuration with some values changed, as the bridge's own class.

    Parameters
    ----------
    recorded
        As the journal holds it; None gives the defaults.
    changes
        New values by name, with or without ``polar_``.

    Raises
    ------
    StatsError
        If a change names nothing that the bridge can be told.
    """
    fields = {f.name for f in dataclasses.fields(PolarSlimeConfig)}
    values = {k: v for k, v in (recorded or {}).items() if k in fields}
    for name, value in (changes or {}).items():
        plain = name.removeprefix("polar_")
        if plain not in fields:
            raise StatsError(f"the bridge has no setting {name!r}")
        values[plain] = value
    values |= {"rollout_url": values.get("rollout_url") or "recorded", "task_template": {}}
    for name in ("gdpo_reward_keys", "dvao_reward_keys"):
        if values.get(name) is not None:
            values[name] = tuple(values[name])
    return PolarSlimeConfig(**values)


def estimator_in_use(frames: Frames) -> Callable[[RewardBatch], Any]:
    """Return the estimator that the run was trained with, as far as its files say.

    The journal names it where it was chosen; for the default, the form that comes closer to the dumped
    advantages is taken, and for a class of the user's own as well: a journal's word is no reason to import
    anything.
    """
    configs = list(configurations(frames).values())
    if configs:
        chosen = _named(configs[-1])
        if chosen is not None:
            return chosen
    plain, divided = LeaveOneTrajectoryOut(), LeaveOneTrajectoryOut(std_normalization=True)
    raw = floats(frames.traces, "advantage_raw")
    raw = np.where(raw == 0, np.nan, raw)  # both forms agree on groups without variance, which may be most
    if np.isnan(raw).all():
        return plain
    errors = []
    for candidate in (plain, divided):
        own = floats(recompute(frames.traces, candidate, sessions=frames.sessions), "advantage")
        off = np.abs(own - raw)
        errors.append(float(np.nanmedian(off)) if not np.isnan(off).all() else np.inf)
    return divided if errors[1] < errors[0] - _CLOSE else plain


def _named(config: Mapping[str, Any]) -> Callable[[RewardBatch], Any] | None:
    name, kwargs = config.get("advantage_estimator"), dict(config.get("advantage_estimator_kwargs") or {})
    for candidate in ("gdpo", "dvao"):
        if config.get(f"{candidate}_reward_keys"):
            name, kwargs = candidate, {**kwargs, "keys": tuple(config[f"{candidate}_reward_keys"])}
    # A journal is data from anywhere: what it names outside the bridge is imported by nobody but its owner,
    # who hands the estimator over.
    if not name or ":" in str(name):
        return None
    try:
        return get_estimator(str(name), kwargs)
    except AdvantageError:  # of another version of the bridge
        return None
