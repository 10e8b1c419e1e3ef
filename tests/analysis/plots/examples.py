"""For each figure a frame like the ones it is made for, small enough to check by eye; the same every time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from analysis import plots
from tests.analysis.plots import trust_examples


@dataclass(frozen=True)
class Example:
    """One figure: its function, the columns that it must have, and how a typical frame is made."""

    function: Callable[..., Any]
    required: tuple[str, ...]
    make: Callable[[], pd.DataFrame]
    options: dict[str, Any] = field(default_factory=dict)

    def draw(self, frame: pd.DataFrame | None = None, **options: Any) -> Any:
        return self.function(self.make() if frame is None else frame, **{**self.options, **options})


def _rng() -> np.random.Generator:
    return np.random.default_rng(7)


def _nullable(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame(columns).convert_dtypes()


def reward() -> pd.DataFrame:
    at = np.arange(20)
    mean = 0.9 - 0.6 * np.exp(-at / 5)
    training = pd.DataFrame(
        {
            "rollout_id": at,
            "evaluation": False,
            "reward_mean": mean,
            "reward_std": 0.3,
            "reward_low": mean - 0.05,
            "reward_high": mean + 0.05,
            "reward_mean_completed": mean + 0.04,
        }
    )
    held_out = pd.DataFrame(
        {
            "rollout_id": [0, 20],
            "evaluation": True,
            "reward_mean": [0.35, 0.88],
            "reward_low": [0.3, 0.85],
            "reward_high": [0.4, 0.91],
        }
    )
    return pd.concat([training, held_out], ignore_index=True).convert_dtypes()


def evaluations() -> pd.DataFrame:
    at = np.tile([0, 10, 20], 2)
    mean = np.array([0.3, 0.6, 0.8, 0.2, 0.3, 0.45])
    names = np.repeat(["held_out", "hard set"], 3)
    return _nullable(
        rollout_id=at, dataset=names, reward_mean=mean, reward_low=mean - 0.05, reward_high=mean + 0.05
    )


def trajectories() -> pd.DataFrame:
    """Twelve groups of eight in four rollouts; the last ones have nothing left to learn."""
    rng = _rng()
    group = np.repeat(np.arange(12), 8)
    reward = (rng.random(96) < np.minimum(0.25 + 0.09 * group, 1.0)).astype(float)
    reward[group >= 10] = 1.0
    others = (np.bincount(group, weights=reward)[group] - reward) / 7
    return _nullable(
        rollout_id=group // 3,
        group=group + 100,
        advantage=reward - others,
        outcome=np.where(reward == 1.0, "success", "failure"),
    )


def noise() -> pd.DataFrame:
    at = np.arange(12)
    return _nullable(rollout_id=at, noise_share=0.1 + 0.02 * at, p_sign_wrong=0.02 + 0.01 * at)


def estimators() -> pd.DataFrame:
    base = trajectories()["advantage"].to_numpy(float)
    parts = [
        pd.DataFrame({"estimator": name, "advantage": base * factor})
        for name, factor in (("loo", 1.0), ("grpo", 2.0), ("as trained", 2.3))
    ]
    return pd.concat(parts, ignore_index=True)


def pairs() -> pd.DataFrame:
    return _nullable(
        first=["loo", "loo", "grpo"],
        second=["grpo", "max_at_k", "max_at_k"],
        spearman=[0.99992, 0.914, 0.921],
        sign_flip_share=[0.0, 0.11, 0.105],
    )


def lengths_by_estimator() -> pd.DataFrame:
    return _nullable(
        estimator=np.repeat(["loo", "grpo"], 3),
        length_low=np.tile([1, 33, 129], 2),
        length_high=np.tile([32, 128, 1024], 2),
        token_share=np.tile([0.1, 0.3, 0.6], 2),
        weight_share=[0.3, 0.35, 0.35, 0.2, 0.3, 0.5],
    )


def autopsy() -> pd.DataFrame:
    return _nullable(
        position=np.arange(6),
        counted=[True, True, True, True, False, False],
        reward=[1.0, 0.0, 0.5, 1.0, 0.0, None],
        baseline=[0.5, 0.833, 0.667, 0.5, None, None],
        advantage=[0.5, -0.833, -0.167, 0.5, None, None],
        absent=[None, None, None, None, "it ran out of time", "the server returned no result for it"],
    )


def rejections() -> pd.DataFrame:
    rows = [
        (0, None, 0),
        (1, "too_stale", 1),
        (1, "low_complete_fraction", 2),
        (3, "low_complete_fraction", 4),
    ]
    rows += [(4, "failed_task", 1), (6, "too_stale", 3), (9, None, 0)]
    return pd.DataFrame(rows, columns=["rollout_id", "reason", "groups"]).convert_dtypes()


def waterfall() -> pd.DataFrame:
    steps = [
        ("delivered", None, 80),
        ("content", "low_complete_fraction", 12),
        ("content", "zero_trainable", 5),
    ]
    steps += [("lag", "too_stale", 9), ("infrastructure", "timeout", 4), ("returned", None, 2)]
    steps += [("evaluation", None, 30)]
    return pd.DataFrame(
        [(stage, reason) for stage, reason, count in steps for _ in range(count)], columns=["stage", "reason"]
    ).astype("string")


def waste() -> pd.DataFrame:
    return _nullable(
        fate=["trained", "rejected", "rejected", "unusable", "evaluation"],
        reason=[None, "too_stale", "low_complete_fraction", "timeout", None],
        session_share=[0.7, 0.1, 0.08, 0.04, 0.08],
        second_share=[0.6, 0.09, 0.06, 0.18, 0.07],
        token_share=[0.75, 0.12, 0.05, 0.0, 0.08],
    )


def survivorship() -> pd.DataFrame:
    effect = np.array([-0.1, 0.4, -0.35, -0.6, 0.9, -0.8])
    return _nullable(
        mechanism=np.repeat(["all", "session: timeout"], 3),
        quantity=np.tile(["response_tokens", "seconds", "reward"], 2),
        effect=effect,
        effect_low=effect - 0.08,
        effect_high=effect + 0.08,
    )


def replay() -> pd.DataFrame:
    before, after = np.array([200.0, 0.62, 1.9]), np.array([140.0, 0.66, 1.1])
    width = np.array([8.0, 0.05, 0.2])
    difference = after - before
    return _nullable(
        quantity=["groups", "reward_mean", "staleness"],
        before=before,
        after=after,
        difference=difference,
        low=difference - width,
        high=difference + width,
    )


def verdicts() -> pd.DataFrame:
    rows = [(True, None, True, None)] * 60 + [(True, None, False, "constant")] * 25
    rows += [(False, "low_complete_fraction", False, "low_complete_fraction")] * 10
    rows += [(False, "low_complete_fraction", True, None)] * 5 + [(False, "too_stale", None, None)] * 3
    names = ["accepted", "reason", "replayed_accepted", "replayed_reason"]
    return pd.DataFrame(rows, columns=names).convert_dtypes()


def zero_signal() -> pd.DataFrame:
    rng = _rng()
    prompt, at = np.divmod(np.arange(8 * 15), 15)
    chance = np.clip(1.4 - 0.12 * prompt - 0.05 * at, 0.05, 1.0)
    kind = np.where(rng.random(120) < chance, "mixed", np.where(prompt < 6, "all_correct", "all_wrong"))
    kept = rng.random(120) < 0.7
    preview = [f'[{{"role":"user","content":"How many boxes are on shelf {chr(65 + p)}?"}}]' for p in prompt]
    frame = pd.DataFrame(
        {
            "rollout_id": at,
            "prompt_sha256": [f"{p:02d}" * 32 for p in prompt],
            "prompt_preview": preview,
            "kind": kind,
        }
    )
    return frame[kept].convert_dtypes()


def signal() -> pd.DataFrame:
    at = np.arange(15)
    correct, wrong = np.minimum(at, 12), np.where(at < 5, 3, 1)
    return _nullable(
        rollout_id=at,
        groups=np.full(15, 16),
        mixed=16 - correct - wrong,
        all_correct=correct,
        all_wrong=wrong,
    )


def policy_lag() -> pd.DataFrame:
    at = np.arange(12)
    mean = 1.0 + 0.5 * np.sin(at)
    return _nullable(
        rollout_id=at,
        lag_mean=mean,
        lag_min=np.zeros(12),
        lag_max=np.ceil(mean + 0.6),
        in_flight_mean=mean * 0.6,
        token_lag_mean=mean * 1.1,
        bound=np.full(12, 3.0),
    )


def lag_histogram() -> pd.DataFrame:
    return _nullable(
        part=np.repeat(["total", "in_flight", "in_queue"], 4),
        lag=np.tile(np.arange(4.0), 3),
        groups=[30, 50, 15, 5, 55, 35, 8, 2, 70, 25, 5, 0],
    )


def lag_groups() -> pd.DataFrame:
    pairs = [(0, 0, 30), (0, 1, 25), (1, 0, 40), (1, 1, 12), (2, 0, 9), (2, 1, 3), (3, 0, 2)]
    rows = [(flight, queue, 3) for flight, queue, count in pairs for _ in range(count)]
    return pd.DataFrame(rows, columns=["in_flight", "in_queue", "bound"]).convert_dtypes()


def relations() -> pd.DataFrame:
    share = np.array([0.02, 0.05, 0.12, 0.4])
    return _nullable(
        lag=np.arange(4), rejected_share=share, low=share / 2, high=share * 1.6, candidates=[120, 90, 30, 8]
    )


def off_policy() -> pd.DataFrame:
    spread = np.array([0.001, 0.04, 0.09, 0.2])
    return _nullable(
        lag=np.arange(4),
        tokens=[21_300, 38_000, 9_060, 2_700],
        ratio_mean=1.0 - spread / 10,
        log_ratio_abs_mean=spread,
        ratio_max=[1.01, 2.4, 3.1, 7.5],
        ess=1.0 - spread,
        sequence_ess=1.0 - 3 * spread,
    )


def logprobs(count: int = 400) -> pd.DataFrame:
    rng = _rng()
    sampled = -rng.exponential(1.0, count)
    trained = np.minimum(sampled + rng.normal(0, 0.15, count), 0.0)
    return _nullable(logprob=sampled, train_logprob=trained, mask=np.ones(count, dtype=int))


def sessions() -> pd.DataFrame:
    rng = _rng()
    status = np.repeat(["COMPLETED", "TIMEOUT", "ERROR"], [200, 30, 20])
    tokens = np.concatenate([rng.normal(300, 60, 200), rng.normal(560, 20, 30), rng.normal(80, 40, 20)])
    return _nullable(status=status, response_tokens=np.maximum(tokens, 1).round().astype(int))


def truncation() -> pd.DataFrame:
    at = np.arange(15)
    share = 0.05 + 0.01 * at
    return _nullable(
        rollout_id=at,
        truncated_share=share,
        truncated_low=share * 0.7,
        truncated_high=share * 1.3,
        timeout_share=0.1 - 0.005 * at,
        clipped_share=np.full(15, 0.02),
    )


def timeline() -> pd.DataFrame:
    rng = _rng()
    rows = []
    for session in range(24):
        start = 2.0 * (session // 8) + 0.1 * rng.random()
        for stage, mean in (("queue", 0.2), ("init", 0.3), ("run", 1.2), ("postrun", 0.2)):
            end = start + mean * (0.5 + rng.random())
            rows.append((f"ses-{session}", f"node-{session % 2}", stage, start, end))
            start = end
    names = ["session_id", "node_id", "stage", "start", "end"]
    return pd.DataFrame(rows, columns=names).convert_dtypes()


def stage_times() -> pd.DataFrame:
    at = np.repeat(np.arange(10), 3)
    return _nullable(
        rollout_id=at,
        stage=np.tile(["queue", "init", "run"], 10),
        mean=np.tile([0.3, 0.1, 1.0], 10) + 0.02 * at,
    )


def idle() -> pd.DataFrame:
    at = np.arange(12)
    busy = np.append(np.full(11, 1.5), np.nan)
    return _nullable(rollout_id=at, wait_seconds=2.0 + np.cos(at), busy_seconds=busy)


def nodes() -> pd.DataFrame:
    return _nullable(
        node_id=["gateway-0", "gateway-1", "gateway-2"],
        busy_seconds=[58.0, 41.0, 20.0],
        idle_seconds=[2.0, 15.0, 30.0],
        mean_running=[7.25, 5.5, None],
    )


def running() -> pd.DataFrame:
    at = np.arange(0.0, 40.0, 0.5)
    return _nullable(at=at, sessions=(8 + 6 * np.sin(at / 3)).round().astype(int))


def tokens() -> pd.DataFrame:
    texts = [
        "<|user|>",
        "\n",
        "How",
        " many",
        " boxes",
        "?",
        "<|assistant|>",
        "\n",
        "<call>",
        " count",
        "(",
        "B",
        ")",
    ]
    texts += [
        "</call>",
        "<|tool|>",
        "7",
        "<|assistant|>",
        "There",
        " are",
        " seven",
        " boxes",
        ".",
        "<|end|>",
    ]
    mask = np.array([0] * 8 + [1] * 6 + [0] * 3 + [1] * 6)
    logprob = np.where(mask == 1, -np.abs(np.sin(np.arange(23))) * 2.5, np.nan)
    advantage = np.where(mask == 1, np.where(np.arange(23) < 14, 0.8, -0.4), np.nan)
    return _nullable(
        session_id=["s"] * 23,
        position=np.arange(23),
        text=texts,
        mask=mask,
        logprob=logprob,
        advantage=advantage,
    )


EXAMPLES: dict[str, Example] = {
    "reward": Example(plots.plot_reward, ("rollout_id", "reward_mean"), reward),
    "evaluations": Example(plots.plot_evaluations, ("rollout_id", "reward_mean"), evaluations),
    "advantages": Example(plots.plot_advantages, ("rollout_id", "advantage"), trajectories),
    "group_advantages": Example(plots.plot_group_advantages, ("group", "advantage"), trajectories),
    "advantage_distribution": Example(
        plots.plot_advantage_distribution, ("rollout_id", "advantage"), trajectories
    ),
    "noise": Example(plots.plot_noise, ("rollout_id", "noise_share"), noise),
    "estimators": Example(plots.plot_estimators, ("estimator", "advantage"), estimators),
    "estimator_agreement": Example(plots.plot_estimator_agreement, ("first", "second", "spearman"), pairs),
    "estimator_lengths": Example(
        plots.plot_estimator_lengths,
        ("estimator", "length_low", "length_high", "weight_share", "token_share"),
        lengths_by_estimator,
    ),
    "autopsy": Example(plots.plot_autopsy, ("counted", "reward", "baseline", "advantage"), autopsy),
    "rejections": Example(plots.plot_rejections, ("rollout_id", "reason"), rejections),
    "waterfall": Example(plots.plot_waterfall, ("stage", "reason"), waterfall),
    "waste": Example(
        plots.plot_waste, ("fate", "reason", "session_share", "second_share", "token_share"), waste
    ),
    "survivorship": Example(plots.plot_survivorship, ("mechanism", "quantity", "effect"), survivorship),
    "replay": Example(plots.plot_replay, ("quantity", "before", "after", "difference"), replay),
    "verdicts": Example(
        plots.plot_verdicts, ("accepted", "reason", "replayed_accepted", "replayed_reason"), verdicts
    ),
    "zero_signal": Example(plots.plot_zero_signal, ("rollout_id", "prompt_sha256", "kind"), zero_signal),
    "signal": Example(plots.plot_signal, ("rollout_id", "groups"), signal),
    "policy_lag": Example(
        plots.plot_policy_lag, ("rollout_id", "lag_mean", "lag_min", "lag_max"), policy_lag
    ),
    "lag_histogram": Example(plots.plot_lag_histogram, ("lag", "groups"), lag_histogram, {"bound": 3}),
    "lag_parts": Example(plots.plot_lag_parts, ("in_flight", "in_queue"), lag_groups),
    "rejection_by_lag": Example(plots.plot_rejection_by_lag, ("lag", "rejected_share"), relations),
    "ratio": Example(plots.plot_ratio, ("lag", "ratio_mean"), off_policy),
    "ess": Example(plots.plot_ess, ("lag", "ess"), off_policy),
    "logprobs": Example(plots.plot_logprobs, ("logprob", "train_logprob"), logprobs),
    "lengths": Example(plots.plot_lengths, ("response_tokens", "status"), sessions),
    "truncation": Example(plots.plot_truncation, ("rollout_id",), truncation),
    "timeline": Example(plots.plot_timeline, ("session_id", "stage", "start", "end"), timeline),
    "stage_times": Example(plots.plot_stage_times, ("rollout_id", "stage", "mean"), stage_times),
    "stage_spread": Example(plots.plot_stage_spread, ("stage", "end"), timeline),
    "idle": Example(plots.plot_idle, ("rollout_id", "wait_seconds", "busy_seconds"), idle),
    "nodes": Example(plots.plot_nodes, ("node_id", "busy_seconds", "idle_seconds"), nodes),
    "running": Example(plots.plot_running, ("at", "sessions"), running),
    "tokens": Example(plots.plot_tokens, ("position", "mask", "logprob", "advantage"), tokens),
    "contamination": Example(
        plots.plot_contamination, ("cause", "verdict", "sessions"), trust_examples.contamination
    ),
    "reconciliation": Example(
        plots.plot_reconciliation, ("name", "emitted", "recomputed", "status"), trust_examples.reconciliation
    ),
    "simulation": Example(plots.plot_simulation, ("value", "share"), trust_examples.simulation),
}
"""Every figure by its name without ``plot_``."""
