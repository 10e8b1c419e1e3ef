"""Rejections: what was thrown away, why, at what cost, and what other settings would have done.

One module per question, gathered here:

- `ledger`: every attempted group and session, with stage, reason, deciding numbers, lag and cost;
- `replay`: the recorded groups judged again by the bridge's own code;
- `contamination`: zero rewards that were infrastructure, and what they did to advantages;
- `survivorship`: how what was accepted differs from what was attempted;
- `waste`: seconds, tokens and sessions per reason, adding up to the total;
- `zero_signal`: groups without variance, by prompt and over time;
- `prompt_history`: all attempts at one prompt.
"""

from __future__ import annotations

from analysis.stats.contamination import CAUSES, Contamination, contamination
from analysis.stats.ledger import Ledger, ledger
from analysis.stats.prompts import KINDS, ZeroSignal, prompt_history, zero_signal
from analysis.stats.replay import Replay, ReplayedGroup, all_correct, all_wrong, constant_rewards, replay
from analysis.stats.survivorship import Survivorship, survivorship
from analysis.stats.waste import Waste, waste

__all__ = [
    "CAUSES",
    "KINDS",
    "Contamination",
    "Ledger",
    "Replay",
    "ReplayedGroup",
    "Survivorship",
    "Waste",
    "ZeroSignal",
    "all_correct",
    "all_wrong",
    "constant_rewards",
    "contamination",
    "ledger",
    "prompt_history",
    "replay",
    "survivorship",
    "waste",
    "zero_signal",
]
