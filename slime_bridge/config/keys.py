"""Every configuration key, declared once: name, default, what it accepts, what it means.

`PolarSlimeConfig`'s values, error messages, the warning about misspelt keys and the documentation all come
from this table. The keys are attributes of the trainer's ``args``, put there by Slime's
``--custom-config-path`` file or its own command line, or environment variables. The module does not know how
keys constrain one another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slime_bridge import _parsing as parse
from slime_bridge._parsing import Parser

__all__ = ["ENVIRONMENT_KEYS", "KEYS", "SLIME_KEYS", "Key"]


@dataclass(frozen=True)
class Key:
    """One key.

    Parameters
    ----------
    name
        Attribute of ``args``, or environment variable.
    default
        Value where the key is absent, null or, in the environment, empty.
    parser
        What it accepts.
    meaning
        One or two sentences for the documentation.
    default_text
        How the default reads where it depends on other keys.
    field
        Field of `PolarSlimeConfig`; by default the name without ``polar_``.
    required
        Whether its absence is an error.
    secret
        Whether its value must never be shown.
    """

    name: str
    default: Any
    parser: Parser
    meaning: str
    default_text: str = ""
    field: str = ""
    required: bool = False
    secret: bool = False

    def __post_init__(self) -> None:
        if not self.field:
            object.__setattr__(self, "field", self.name.removeprefix("polar_"))


_SECONDS = parse.number(above=0)
_COUNT = parse.integer(at_least=1)
_COUNT_OR_ZERO = parse.integer(at_least=0)
_FRACTION = parse.number(at_least=0, at_most=1)

KEYS: tuple[Key, ...] = (
    Key(
        "polar_rollout_url",
        None,
        parse.url,
        "Base URL of the rollout server.",
        "`rollout.public_url` of the topology",
    ),
    Key(
        "polar_topology_path",
        None,
        parse.path,
        "Polar's topology file; needed where `polar_rollout_url` is not set.",
    ),
    Key(
        "polar_task_template",
        None,
        parse.mapping,
        "Mapping that is rendered into each task request; holds at least `agent`.",
        required=True,
    ),
    Key(
        "polar_task_id_template",
        "polar-slime-{rollout_id}-{sample.group_index}",
        parse.text,
        "Rendered into each task's id; what is unsafe in a path is replaced, with a short hash.",
    ),
    Key(
        "polar_instruction_template",
        None,
        parse.text,
        "Rendered into the instruction; `{instruction}` is the prompt's text.",
        "the prompt's text",
    ),
    Key(
        "polar_reward_key",
        None,
        parse.text,
        "Key of the reward in each sample's reward mapping.",
        "`reward_key`, else `score`",
    ),
    Key(
        "polar_max_async_level",
        2,
        _COUNT,
        "Batches of groups in flight: at most `rollout_batch_size` times this many groups; accepted samples "
        "are at most this plus `update_weights_interval` rollouts old.",
    ),
    Key("polar_request_timeout", None, _SECONDS, "Seconds for one HTTP request.", "a bound per request kind"),
    Key(
        "polar_group_timeout",
        None,
        _SECONDS,
        "Seconds from a group's first submit to its result.",
        "twice the task's timeout + 180",
    ),
    Key(
        "polar_outage_timeout",
        1800.0,
        _SECONDS,
        "Seconds without any answer from the server until the rollout fails.",
    ),
    Key(
        "polar_callback_host",
        "127.0.0.1",
        parse.host(wildcard=False),
        "Name or address under which Polar reaches this process.",
    ),
    Key(
        "polar_callback_bind_host",
        None,
        parse.host(wildcard=True),
        "Address the callback listener binds.",
        "`polar_callback_host`",
    ),
    Key(
        "polar_callback_port",
        0,
        parse.integer(at_least=0, at_most=65535),
        "Port of the callback listener; 0 takes a free one.",
    ),
    Key(
        "polar_scoring_mode",
        "group",
        parse.choice("group", "individual"),
        "One task per prompt group, or one per sample.",
    ),
    Key(
        "polar_min_complete_accept_fraction",
        0.0,
        _FRACTION,
        "A group needs at least ceil(sessions * fraction) completed sessions that have a trainable token.",
    ),
    Key(
        "polar_add_generation_prompt",
        True,
        parse.boolean,
        "Kept for older files. No chat template is applied here, the engine's always ends in a generation "
        "prompt: false has no effect, and that is said.",
    ),
    Key(
        "polar_eval_dataset_name",
        "polar_eval",
        parse.text,
        "Name of the evaluation where there is no `eval_datasets`.",
    ),
    Key(
        "polar_fully_async",
        False,
        parse.boolean,
        "Keep the whole window of groups in flight across rollout boundaries.",
    ),
    Key(
        "polar_trust_env",
        False,
        parse.boolean,
        "Use the environment's proxy variables for requests to Polar.",
    ),
    Key(
        "polar_max_prompt_attempts",
        8,
        _COUNT,
        "Attempts per prompt until it is given up, counted and named in the journal.",
    ),
    Key(
        "polar_max_prompt_deadlines",
        2,
        _COUNT,
        "Attempts of these that may use up the whole `polar_group_timeout`: a prompt that hangs holds its "
        "slot that long each time.",
    ),
    Key(
        "polar_missing_reward",
        "zero",
        parse.choice("zero", "reject", "error"),
        "What a null reward of a completed session becomes: 0.0 (counted), a rejected group, or an error.",
    ),
    Key(
        "polar_overlong_traces",
        "drop",
        parse.choice("drop", "clip"),
        "Traces above the token cap are dropped, or keep their prompt and a prefix of the response.",
    ),
    Key(
        "polar_aborted_turns",
        "mask",
        parse.choice("mask", "drop", "keep"),
        "What happens to turns that a weight update cut short.",
    ),
    Key(
        "polar_max_trajectory_tokens",
        None,
        _COUNT,
        "Cap on prompt and response tokens of a trace, within the trainer's capacity.",
    ),
    Key(
        "polar_allow_single_sample_over_token_cap",
        False,
        parse.boolean,
        "Let one trace exceed `max_tokens_per_gpu * context_parallel_size`: only `seq_length` and "
        "`polar_max_trajectory_tokens` bound it then.",
    ),
    Key(
        "polar_run_dir",
        None,
        parse.directory,
        "Folder of the journal and the rejected samples; `off` for none.",
        "`polar` under `save`, else off",
    ),
    Key(
        "polar_advantage_estimator",
        None,
        parse.text,
        "Registered name or `module:attr` of the advantage estimator.",
        "leave one trajectory out",
    ),
    Key(
        "polar_advantage_estimator_kwargs",
        None,
        parse.mapping,
        "Parameters of the advantage estimator.",
        "{}",
    ),
    Key("gdpo_reward_keys", None, parse.names(2), "Two reward components for the GDPO estimator.", "off"),
    Key("dvao_reward_keys", None, parse.names(2), "Two reward components for the DVAO estimator.", "off"),
    Key(
        "polar_max_consecutive_infrastructure_failures",
        0,
        _COUNT_OR_ZERO,
        "Stop after so many groups in a row whose sessions all failed without a trace; 0 never stops.",
    ),
    Key(
        "polar_candidate_pool_health_gate_enabled",
        False,
        parse.boolean,
        "Before the first training step, stop if too few sessions complete.",
    ),
    Key("polar_candidate_pool_health_gate_min_observed_sessions", 16, _COUNT, "Sessions the gate waits for."),
    Key(
        "polar_candidate_pool_health_gate_min_completion_fraction",
        0.1,
        _FRACTION,
        "Completed share the gate asks for.",
    ),
    Key(
        "polar_early_stop_grace_sessions",
        2,
        _COUNT_OR_ZERO,
        "With `polar_min_complete_accept_fraction` f above 0, a server that can stops a group's stragglers "
        "after min(n, ceil(n f) + this) usable sessions.",
    ),
    Key("polar_task_timeout_floor", None, _SECONDS, "A task's `timeout_seconds` is at least this."),
    Key(
        "polar_train_agent_timeout",
        None,
        _SECONDS,
        "Seconds for the agent itself in training, counted from RUN.",
    ),
    Key(
        "polar_eval_agent_timeout",
        None,
        _SECONDS,
        "Seconds for the agent itself in evaluation, counted from RUN.",
    ),
    Key(
        "polar_drop_all_wrong_groups",
        False,
        parse.boolean,
        "Drop groups without any success from a complete batch, without replacement and never all of it. "
        "`global_batch_size` must be low enough for what is left.",
    ),
    Key(
        "polar_balance_all_correct_groups",
        False,
        parse.boolean,
        "Thin out the all-correct groups of a complete batch to the number of mixed ones, chosen by rollout "
        "id; at least one group is left.",
    ),
    Key(
        "polar_weight_update_pause_timeout",
        300.0,
        _SECONDS,
        "Seconds to wait for running generations before a weight push.",
    ),
    Key(
        "polar_eval_max_concurrent_sessions",
        None,
        _COUNT,
        "Evaluation sessions in flight.",
        "a share of the training cap",
    ),
)
"""The bridge's own keys, in the order of the documentation."""

SLIME_KEYS: tuple[Key, ...] = (
    Key("hf_checkpoint", None, parse.path, "Tokenizer and model."),
    Key("rollout_batch_size", 1, _COUNT, "Groups per rollout."),
    Key("n_samples_per_prompt", 1, _COUNT, "Sessions per group."),
    Key("update_weights_interval", 1, _COUNT, "Rollouts between weight pushes."),
    Key(
        "over_sampling_batch_size",
        None,
        _COUNT,
        "Groups per refill; surplus ones serve the next call.",
        "`rollout_batch_size`",
    ),
    Key("dynamic_sampling_filter_path", None, parse.text, "Function that keeps or rejects a finished group."),
    Key("rollout_sample_filter_path", None, parse.text, "Function that marks samples of the complete batch."),
    Key("rollout_all_samples_process_path", None, parse.text, "Function that sees all finished samples."),
)
"""Slime's own keys that become fields; others only shape derived values."""

ENVIRONMENT_KEYS: tuple[Key, ...] = (
    Key(
        "POLAR_CONTROL_PLANE_TOKEN",
        None,
        parse.text,
        "Sent as `X-Polar-Control-Token`.",
        field="control_plane_token",
        secret=True,
    ),
    Key(
        "POLAR_EVAL_DATA_INTEGRITY_B64",
        None,
        parse.text,
        "Base64 of the JSON that lists evaluation files and their SHA-256.",
        field="eval_data_integrity",
    ),
    Key(
        "POLAR_ROLLOUT_EXAMPLE_INTERVAL",
        10,
        _COUNT,
        "Rollouts between saved example trajectories.",
        field="rollout_example_interval",
    ),
    Key(
        "POLAR_ROLLOUT_EXAMPLE_COUNT",
        2,
        _COUNT,
        "How many of the best, and how many of the worst trajectories are shown, the longest first.",
        field="rollout_example_count",
    ),
    Key(
        "POLAR_ROLLOUT_EXAMPLES_DIR",
        None,
        parse.directory,
        "Folder for the examples: one file per rollout, readable for its owner only.",
        "off",
        field="rollout_examples_dir",
    ),
    Key(
        "POLAR_ROLLOUT_EXAMPLES_WANDB",
        False,
        parse.boolean,
        "Whether examples go to the Weights & Biases run of this process, session ids hashed.",
        field="rollout_examples_wandb",
    ),
)
"""Settings that come from the environment, because they are secrets or belong to one launch."""
