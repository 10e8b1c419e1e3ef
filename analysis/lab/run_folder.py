"""Where a run puts its files: the layout that a real Slime run with Polar leaves behind, in one folder.

Only names; nothing is created or read here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["RunFolder"]


@dataclass(frozen=True)
class RunFolder:
    """Names of everything inside one run folder.

    Attributes
    ----------
    root
        The folder itself.
    """

    root: Path

    @property
    def config(self) -> Path:
        """Settings, versions and the resolved trainer namespace."""
        return self.root / "config.json"

    @property
    def polar_config(self) -> Path:
        """The `polar_*` keys, as a launch script would pass them with ``--custom-config-path``."""
        return self.root / "polar_config.yaml"

    @property
    def metrics(self) -> Path:
        """One JSON object per rollout and per evaluation."""
        return self.root / "metrics.jsonl"

    @property
    def bridge(self) -> Path:
        """The bridge's own folder: journal and rejected samples."""
        return self.root / "polar"

    @property
    def polar_results(self) -> Path:
        """What the rollout server saves: ``task_*/ses_*.json``."""
        return self.root / "polar_results"

    @property
    def rollout_data(self) -> Path:
        """Slime's rollout dumps."""
        return self.root / "rollout_data"

    @property
    def train_data(self) -> Path:
        """Slime's train dumps."""
        return self.root / "train_data"

    @property
    def tokenizer(self) -> Path:
        """The tokenizer, as Slime saves it beside its dumps."""
        return self.root / "tokenizer"

    @property
    def checkpoint(self) -> Path:
        """``initial`` and ``final`` checkpoints; while the run goes on ``live``, which the engines load."""
        return self.root / "checkpoint"

    @property
    def prompts(self) -> Path:
        """The data sets: ``train.jsonl`` and ``held_out.jsonl``."""
        return self.root / "prompts"

    @property
    def figures(self) -> Path:
        """PNG files."""
        return self.root / "figures"

    @property
    def logs(self) -> Path:
        """One log per process."""
        return self.root / "logs"
