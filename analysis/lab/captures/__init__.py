"""Sessions captured from real Polar runs, shipped with the package, and what the bridge makes of them.

`small` has one trace; `long` has many tool turns merged into one trace, some of its logprobs exactly zero;
`no_token_ids` completed, but its engine or router returned no token ids. They come from
MHGanainy/gsj-harness-rollout-server (Apache-2.0), with host names and home directories replaced.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from types import SimpleNamespace

from slime_bridge.acceptance import Rejected, judge
from slime_bridge.adapter import session_result_to_samples
from slime_bridge.config import PolarSlimeConfig
from slime_bridge.conversion.groups import convert_group
from slime_bridge.protocol import decode_session_result
from slime_bridge.sample_view import is_placeholder, trainable_tokens

__all__ = ["CAPTURES", "CaptureReport", "capture_bytes", "convert_capture", "convert_captures"]

CAPTURES = ("small", "long", "no_token_ids")
"""Names of the captures, in the order of the report."""

# Conversion needs a whole configuration; nothing is ever sent to this address.
_CONFIG = PolarSlimeConfig(rollout_url="http://127.0.0.1:9", task_template={"agent": {"harness": "shell"}})


@dataclass(frozen=True)
class CaptureReport:
    """What one captured session becomes.

    Attributes
    ----------
    name
        Of the capture.
    samples
        Number of samples, a placeholder included.
    placeholder
        Whether the only sample stands for a session that gave nothing to train on.
    tokens, response_tokens, trainable_tokens
        Over all samples; a placeholder has none.
    zero_logprobs
        Response tokens that were sampled and whose log-probability is exactly 0, kept as they are.
    rejected
        Why a group of this one session would not be trained on; None if it would.
    """

    name: str
    samples: int
    placeholder: bool
    tokens: int
    response_tokens: int
    trainable_tokens: int
    zero_logprobs: int
    rejected: str | None

    def describe(self) -> str:
        """Return the numbers as one line of text."""
        count = f"{self.samples} sample{'s' if self.samples != 1 else ''}"
        if self.placeholder:
            return f"1 placeholder, group rejected: {(self.rejected or 'no reason').replace('_', ' ')}"
        zeros = f", {self.zero_logprobs:,} zero logprobs kept" if self.zero_logprobs else ""
        verdict = f", group rejected: {self.rejected.replace('_', ' ')}" if self.rejected else ""
        return (
            f"{count}, {self.tokens:,} tokens, {self.response_tokens:,} response, "
            f"{self.trainable_tokens:,} trainable{zeros}{verdict}"
        )


def capture_bytes(name: str) -> bytes:
    """Return a capture as it was received: the JSON of one session result."""
    return files(__package__).joinpath(f"{name}.json").read_bytes()


def convert_capture(name: str) -> CaptureReport:
    """Convert one capture as the bridge converts every session, and judge the group that it would make up."""
    result = decode_session_result(capture_bytes(name))
    samples = session_result_to_samples(result, 0, trajectory_index=0)
    real = [sample for sample in samples if not is_placeholder(sample)]
    prompt = SimpleNamespace(group_index=0, index=0, label=None, metadata={})
    # Conversion takes the lists of a result over, so the group gets a result of its own.
    group = convert_group([decode_session_result(capture_bytes(name))], [prompt], config=_CONFIG)
    verdict = judge(group, settings=_CONFIG)
    return CaptureReport(
        name=name,
        samples=len(samples),
        placeholder=not real,
        tokens=sum(len(sample.tokens) for sample in real),
        response_tokens=sum(sample.response_length for sample in real),
        trainable_tokens=sum(trainable_tokens(sample) for sample in real),
        zero_logprobs=sum(
            flag == 1 and value == 0.0
            for sample in real
            for flag, value in zip(sample.loss_mask, sample.rollout_log_probs, strict=True)
        ),
        rejected=str(verdict.reason) if isinstance(verdict, Rejected) else None,
    )


def convert_captures() -> list[CaptureReport]:
    """Convert all captures, in the order of `CAPTURES`."""
    return [convert_capture(name) for name in CAPTURES]
