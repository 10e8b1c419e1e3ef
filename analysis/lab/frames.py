"""Frames for the four figures, read back from a run folder: what is drawn is what was left on disk.

Reads the metrics, the journal and the dumps of one run; anything that is not there gives an empty frame.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.lab.dumps import read_dump, rollout_dump_path, train_dump_path
from analysis.lab.rollout_stats import interval, sessions_of
from analysis.lab.run_folder import RunFolder
from slime_bridge.journal.reader import read_journal

__all__ = ["advantage_frame", "lag_frame", "read_metrics", "rejection_frame", "reward_frame"]


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read a metrics file; a torn last line (a run that was killed) is left out."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def reward_frame(records: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows for `plot_reward`: training rollouts and held-out evaluations, with 95 % intervals of the mean."""
    rows = []
    for record in records:
        kind = record.get("kind")
        mean, error = _number(record.get("lab/reward_mean")), _number(record.get("lab/reward_stderr"))
        if kind not in ("rollout", "evaluation"):
            continue
        low, high = interval(mean, error)
        rows.append(
            {
                "series": "training" if kind == "rollout" else "held-out",
                "rollout_id": record["rollout_id"],
                "reward_mean": mean,
                "reward_low": low,
                "reward_high": high,
            }
        )
    return pd.DataFrame(rows, columns=["series", "rollout_id", "reward_mean", "reward_low", "reward_high"])


def lag_frame(records: Iterable[Mapping[str, Any]], *, limit: int | None = None) -> pd.DataFrame:
    """Rows for `plot_policy_lag`, one per training rollout."""
    names = ["lag_mean", "lag_min", "lag_max", "token_lag_mean"]
    rows = [
        {"rollout_id": record["rollout_id"], **{name: _number(record.get(f"lab/{name}")) for name in names}}
        for record in records
        if record.get("kind") == "rollout"
    ]
    frame = pd.DataFrame(rows, columns=["rollout_id", *names])
    frame["limit"] = math.nan if limit is None else float(limit)
    return frame


def rejection_frame(journal: Path) -> pd.DataFrame:
    """Rows for `plot_rejections`: rejected groups by reason, counted to the rollout that was being collected.

    Parameters
    ----------
    journal
        The journal's file or folder; every rollout it asks for has at least one row, without a reason if
        nothing was rejected.
    """
    columns = ["rollout_id", "reason", "groups"]
    if not journal.exists() or (journal.is_dir() and not any(journal.glob("journal*.jsonl"))):
        return pd.DataFrame(columns=columns)
    counts: Counter[tuple[int, str]] = Counter()
    rollouts: list[int] = []
    for record in read_journal(journal):
        if record["event"] == "rollout_requested":
            rollouts.append(int(record["rollout_id"]))
        elif record["event"] == "group_rejected" and rollouts:
            counts[rollouts[-1], str(record["reason"])] += 1
    rows: list[tuple[int, str | None, int]] = [(k, reason, n) for (k, reason), n in sorted(counts.items())]
    quiet = set(rollouts) - {rollout for rollout, _, _ in rows}
    rows.extend((rollout, None, 0) for rollout in sorted(quiet))
    return pd.DataFrame(rows, columns=columns)


def advantage_frame(folder: RunFolder, rollouts: Sequence[int], *, reward_key: str) -> pd.DataFrame:
    """Rows for `plot_advantages`: one per trajectory, from the dumps of both sides.

    The advantage is the train dump's, averaged over the trajectory's samples with a trainable token; the
    outcome is the rollout dump's reward: success at 1 or more, failure at 0 or less, partial between.
    """
    rows: list[dict[str, Any]] = []
    for rollout_id in rollouts:
        rollout = rollout_dump_path(folder.rollout_data, rollout_id)
        train = train_dump_path(folder.train_data, rollout_id)
        if rollout.exists() and train.exists():
            samples = read_dump(rollout)["samples"]
            data = read_dump(train)["rollout_data"]
            rows.extend(_advantages(rollout_id, samples, data, reward_key))
    return pd.DataFrame(rows, columns=["rollout_id", "advantage", "outcome"])


def _advantages(
    rollout_id: int, samples: Sequence[Any], data: Mapping[str, Any], reward_key: str
) -> Iterable[dict[str, Any]]:
    for session in sessions_of(samples, reward_key=reward_key):
        trained = [i for i in session.samples if bool(data["loss_masks"][i].any())]
        values = [float(data["rewards"][i]) for i in trained]
        advantage = sum(values) / len(values) if values else 0.0
        yield {
            "rollout_id": rollout_id,
            "advantage": advantage,
            "outcome": _outcome(session.usable, session.reward),
        }


def _outcome(usable: bool, reward: float) -> str:
    if not usable or math.isnan(reward):
        return "unusable"
    if reward >= 1.0:
        return "success"
    return "failure" if reward <= 0.0 else "partial"


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
