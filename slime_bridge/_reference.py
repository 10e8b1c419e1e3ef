"""Reference pages made from what the code declares, so that they cannot say anything else."""

from __future__ import annotations

from slime_bridge.config import describe_keys

__all__ = ["render_keys"]

_SECTIONS = (
    (
        "args",
        "Keys of the bridge",
        "Attributes of Slime's `args`: top-level keys of the file that `--custom-config-path` names. A key "
        "that is null counts as absent. Booleans, numbers, lists and mappings may be written as text. A key "
        "that is not known is warned about.",
    ),
    (
        "Slime",
        "Slime's own keys that the bridge reads",
        "They stand on Slime's command line (`--rollout-batch-size 32`). Further ones shape what is derived: "
        "`max_tokens_per_gpu`, `context_parallel_size` and `seq_length` bound a trace; `save` is where the "
        "journal goes by default; `reward_key`, `advantage_estimator`, `rewards_normalization` and "
        "`grpo_std_normalization` choose how advantages are made; `eval_datasets` and its fallbacks are read "
        "by Slime's precedence.",
    ),
    (
        "environment",
        "Environment variables",
        "Of the process that runs the rollout function; in a Ray job they belong into its `runtime_env`.",
    ),
)


def render_keys() -> str:
    """Render every configuration key as Markdown."""
    rows = describe_keys()
    lines = ["# Configuration", "", "Written by `slime-bridge keys` from the table in the code.", ""]
    for source, title, text in _SECTIONS:
        lines += [f"## {title}", "", text, "", "| key | default | allowed | meaning |", "|---|---|---|---|"]
        chosen = [row for row in rows if row["source"] == source]
        lines += ["| `{}` | {} | {} | {} |".format(*map(_cell, _columns(row))) for row in chosen]
        lines.append("")
    return "\n".join(lines)


def _columns(row: dict[str, str]) -> list[str]:
    return [row[name] for name in ("key", "default", "allowed", "meaning")]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
