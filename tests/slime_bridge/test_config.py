import copy
import json
import logging
import math
import pickle
from enum import Enum
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_bridge.config import (
    PolarSlimeConfig,
    check_polar_slime_config,
    describe_keys,
    render_instruction,
    render_task_payload,
    require_reward_key,
    resolve_polar_slime_config,
    resolve_reward_settings,
)
from slime_bridge.config import reading as config_module
from slime_bridge.config.keys import ENVIRONMENT_KEYS, KEYS, SLIME_KEYS
from slime_bridge.errors import ConfigError, TemplateError
from slime_bridge.protocol import TaskRequest, encode_task_request

TEMPLATE = {"agent": {"harness": "shell"}}


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    for key in ENVIRONMENT_KEYS:
        monkeypatch.delenv(key.name, raising=False)
    config_module._log_once.cache_clear()


def make_args(**changes):
    return SimpleNamespace(
        **{"polar_rollout_url": "http://127.0.0.1:8080", "polar_task_template": TEMPLATE, **changes}
    )


def resolve(**changes):
    return check_polar_slime_config(make_args(**changes))[0]


def warnings_of(**changes):
    return check_polar_slime_config(make_args(**changes))[1]


class TestDefaults:
    def test_contract_defaults(self):
        """An argument list with only what is required gets the documented defaults."""
        config = resolve()
        assert config.rollout_url == "http://127.0.0.1:8080"
        assert config.task_id_template == "polar-slime-{rollout_id}-{sample.group_index}"
        assert config.instruction_template is None
        assert config.reward_key == "score"
        assert config.max_async_level == 2
        assert config.request_timeout is None
        assert config.callback_host == config.callback_bind_host == "127.0.0.1"
        assert config.scoring_mode == "group"
        assert config.min_complete_accept_fraction == 0.0
        assert config.add_generation_prompt is True
        assert config.eval_dataset_name == "polar_eval"
        assert config.hf_checkpoint is None
        assert config.fully_async is False
        assert config.outage_timeout == 1800
        assert (config.missing_reward, config.overlong_traces, config.aborted_turns) == (
            "zero",
            "drop",
            "mask",
        )
        assert config.early_stop_grace_sessions == 2
        assert config.candidate_pool_health_gate_min_observed_sessions == 16
        assert config.candidate_pool_health_gate_min_completion_fraction == 0.1
        assert config.weight_update_pause_timeout == 300
        assert config.control_plane_token is None
        assert config.max_tokens is None
        assert config.run_dir is None

    def test_the_table_and_the_dataclass_agree(self):
        """A key without a field, or with another default, cannot be declared."""
        fields = PolarSlimeConfig.__dataclass_fields__
        keys = {key.field: key for key in (*KEYS, *SLIME_KEYS, *ENVIRONMENT_KEYS)}
        assert fields.keys() - keys.keys() == {"max_tokens"}
        assert keys.keys() <= fields.keys()
        resolved_elsewhere = {"rollout_url", "task_template", "reward_key", "callback_bind_host"}
        for name in keys.keys() - resolved_elsewhere - {"advantage_estimator_kwargs"}:
            assert fields[name].default == keys[name].default, name

    def test_null_is_the_same_as_absent(self):
        """An empty line in the YAML file means the default, not an error."""
        nulls = {key.name: None for key in KEYS if key.field not in ("rollout_url", "task_template")}
        assert resolve(**nulls) == resolve()

    def test_args_are_not_changed(self):
        """The trainer's arguments stay as they are, and their later changes do not reach the config."""
        args = make_args(
            save="/s", polar_advantage_estimator_kwargs={"a": [1]}, polar_advantage_estimator="x:y"
        )
        args.polar_task_template = {"agent": {"env": {"A": "1"}}}
        before = copy.deepcopy(vars(args))
        config, _ = check_polar_slime_config(args)
        assert vars(args) == before
        args.polar_task_template["agent"]["env"]["A"] = "2"
        assert config.task_template["agent"]["env"]["A"] == "1"


VALID = {
    "polar_rollout_url": [
        ("http://h:1/", "http://h:1"),
        (" https://h/base// ", "https://h/base"),
        ("http://[::1]:8080", "http://[::1]:8080"),
    ],
    "polar_task_template": [('{"agent": {"harness": "x"}}', {"agent": {"harness": "x"}})],
    "polar_max_async_level": [("3", 3), (3.0, 3), ("1e1", 10), (" 4 ", 4)],
    "polar_request_timeout": [("0.5", 0.5), (30, 30.0), ("1e-3", 0.001)],
    "polar_callback_host": [
        ("trainer-0.example", "trainer-0.example"),
        ("[fd00::1]", "fd00::1"),
        ("10.0.0.1",) * 2,
    ],
    "polar_callback_bind_host": [("0.0.0.0", "0.0.0.0"), ("::", "::")],
    "polar_callback_port": [("0", 0), (65535, 65535)],
    "polar_scoring_mode": [("individual", "individual"), ("Group", "group")],
    "polar_min_complete_accept_fraction": [("0.5", 0.5), (1, 1.0), (0, 0.0)],
    "polar_fully_async": [
        *((word, True) for word in (True, 1, "1", "true", "True", "YES", "on")),
        *((word, False) for word in (False, 0, "0", "false", "no", "OFF")),
    ],
    "gdpo_reward_keys": [(["a", "b"], ("a", "b")), ("[a, b]", ("a", "b")), ("a,b", ("a", "b"))],
    "polar_advantage_estimator_kwargs": [('{"x": 1e-3}', {"x": "1e-3"}), ({}, {}), ("{x: 0.5}", {"x": 0.5})],
    "polar_run_dir": [("off", None), (False, None), ("/r", "/r")],
    "polar_missing_reward": [("reject", "reject")],
    "polar_max_consecutive_infrastructure_failures": [("0", 0), (5, 5)],
    "rollout_batch_size": [("8", 8)],
}

INVALID = {
    "polar_rollout_url": [
        "",
        "h:80",
        "ftp://h",
        "http://",
        "http://h:0",
        "http://h:99999",
        "http://${H}",
        5,
        "http://h?a=1",
    ],
    "polar_topology_path": ["", 5, []],
    "polar_task_template": [[], "text", 5, "{unclosed", True],
    "polar_task_id_template": ["", "  ", 5],
    "polar_max_async_level": [0, -1, 1.5, "two", True, math.nan, math.inf, "", [], {}],
    "polar_request_timeout": [0, -1, True, "soon", math.nan, "nan", math.inf, "inf", [], 10**400],
    "polar_group_timeout": [0, "never"],
    "polar_callback_host": ["", "0.0.0.0", "::", "[::]", "*", "http://h", "h:80", "a b", 5, "1.2.3"],
    "polar_callback_port": [-1, 65536, "http", True],
    "polar_scoring_mode": ["both", "", 1],
    "polar_min_complete_accept_fraction": [-0.1, 1.1, math.nan, "half", True],
    "polar_fully_async": ["maybe", 2, 1.0, "", [], "y", "t"],
    "polar_add_generation_prompt": ["sometimes"],
    "polar_missing_reward": ["drop"],
    "polar_overlong_traces": ["keep"],
    "polar_aborted_turns": ["clip"],
    "polar_max_trajectory_tokens": [0, 1.5],
    "polar_advantage_estimator": ["", 5],
    "polar_advantage_estimator_kwargs": [[1], "text"],
    "gdpo_reward_keys": [["a"], ["a", "a"], ["a", "b", "c"], "a", ["a", 5], 5, {"a": 1}],
    "polar_max_consecutive_infrastructure_failures": [-1],
    "polar_candidate_pool_health_gate_min_completion_fraction": [2],
    "polar_task_timeout_floor": [0, True],
    "polar_train_agent_timeout": [0, True, math.inf],
    "polar_run_dir": [5, True],
    "rollout_batch_size": [0, "many"],
    "n_samples_per_prompt": [0],
    "update_weights_interval": [0],
    "max_tokens_per_gpu": [0, "all"],
    "context_parallel_size": [0],
}


class TestValues:
    @pytest.mark.parametrize(
        ("name", "value", "expected"),
        [(name, value, expected) for name, cases in VALID.items() for value, expected in cases],
    )
    def test_accepted(self, name, value, expected):
        """Values come as YAML types or as a command line's strings."""
        kwargs = {"polar_advantage_estimator": "m:a"} if name.endswith("_kwargs") else {}
        result = getattr(resolve(**{name: value}, **kwargs), name.removeprefix("polar_"))
        assert result == expected
        assert type(result) is type(expected)

    @pytest.mark.parametrize(
        ("name", "value"), [(name, value) for name, values in INVALID.items() for value in values]
    )
    def test_refused_by_name_value_and_allowed_form(self, name, value):
        """The error names the key, shows the value and says what is allowed."""
        with pytest.raises(ConfigError) as error:
            resolve(**{name: value})
        message = str(error.value)
        assert message.startswith(f"{name} is {value!r:.100}"[:100])
        assert ": expected " in message
        assert len(message) < 500

    @pytest.mark.parametrize(
        ("changes", "problem"),
        [
            ({"polar_task_template": None}, "polar_task_template is not set: expected a mapping"),
            ({"polar_task_template": {}}, "polar_task_template has no `agent`: expected a mapping"),
            ({"polar_task_template": {"agent": None}}, "has no `agent`"),
            ({"polar_task_template": {"agent": "claude_code"}}, "agent is 'claude_code': expected a mapping"),
            (
                {"polar_rollout_url": None},
                "neither polar_rollout_url nor polar_topology_path is set: expected",
            ),
            ({"gdpo_reward_keys": ["a", "b"], "dvao_reward_keys": ["a", "b"]}, "expected one of them"),
            (
                {"gdpo_reward_keys": ["a", "b"], "polar_advantage_estimator": "m:other"},
                "gdpo_reward_keys chooses the estimator gdpo, but 'm:other' is chosen too",
            ),
        ],
    )
    def test_missing_and_contradictory_keys(self, changes, problem):
        """An empty section or two answers to one question are errors by name."""
        with pytest.raises(ConfigError, match=problem):
            resolve(**changes)

    def test_the_agent_may_be_a_placeholder(self):
        """A dataset can bring its own agents."""
        assert resolve(polar_task_template={"agent": "{sample.metadata.agent}"})

    def test_a_template_that_contains_itself(self):
        """A YAML anchor inside its own anchor is an error, not a crash."""
        loop = {"agent": {}}
        loop["agent"]["self"] = loop
        with pytest.raises(ConfigError, match="polar_task_template is"):
            resolve(polar_task_template=loop)

    def test_no_secret_in_an_error(self, monkeypatch):
        """A refused value never shows credentials."""
        with pytest.raises(ConfigError) as error:
            resolve(polar_rollout_url="ftp://user:hunter2@h")
        assert "hunter2" not in str(error.value)
        monkeypatch.setenv("POLAR_CONTROL_PLANE_TOKEN", "   ")
        with pytest.raises(ConfigError, match=r"POLAR_CONTROL_PLANE_TOKEN is \*\*\*"):
            resolve()

    def test_url_from_the_topology(self, tmp_path):
        """Without a URL, the topology's public address is used; with one, the URL."""
        path = tmp_path / "topology.yaml"
        path.write_text("rollout: {port: 9000}\n")
        args = {"polar_topology_path": str(path)}
        assert resolve(polar_rollout_url=None, **args).rollout_url == "http://127.0.0.1:9000"
        assert resolve(**args).rollout_url == "http://127.0.0.1:8080"

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({}, "score"),
            ({"reward_key": None}, "score"),
            ({"reward_key": "acc"}, "acc"),
            ({"reward_key": "acc", "polar_reward_key": "pass"}, "pass"),
        ],
    )
    def test_reward_key_precedence(self, changes, expected):
        """The bridge's own key, then Slime's, then `score`: the same for every reader."""
        assert resolve(**changes).reward_key == expected
        assert resolve_reward_settings(SimpleNamespace(**changes)).reward_key == expected

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"save": "/ckpt"}, "/ckpt/polar"),
            ({"save": None}, None),
            ({"save": "/ckpt", "polar_run_dir": "/runs/1"}, "/runs/1"),
            ({"save": "/ckpt", "polar_run_dir": "off"}, None),
            ({"polar_run_dir": "~/x"}, None),
        ],
    )
    def test_run_dir(self, changes, expected, monkeypatch):
        """The journal goes beside the checkpoints unless told otherwise or switched off."""
        monkeypatch.setenv("HOME", "/home/me")
        expected = "/home/me/x" if changes.get("polar_run_dir") == "~/x" else expected
        assert resolve(**changes).run_dir == expected

    def test_environment(self, monkeypatch):
        """Secrets and per-launch settings come from the environment; empty is unset."""
        monkeypatch.setenv("POLAR_CONTROL_PLANE_TOKEN", "s3cret")
        monkeypatch.setenv("POLAR_ROLLOUT_EXAMPLE_INTERVAL", "3")
        monkeypatch.setenv("POLAR_ROLLOUT_EXAMPLES_WANDB", "yes")
        monkeypatch.setenv("POLAR_ROLLOUT_EXAMPLE_COUNT", "")
        config = resolve()
        assert config.control_plane_token == "s3cret"
        assert (config.rollout_example_interval, config.rollout_examples_wandb) == (3, True)
        assert config.rollout_example_count == 2
        assert "s3cret" not in repr(config)


class TestTokenCap:
    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({}, None),
            ({"max_tokens_per_gpu": 1000}, 1000),
            ({"max_tokens_per_gpu": 1000, "context_parallel_size": 4}, 4000),
            ({"max_tokens_per_gpu": None, "context_parallel_size": None}, None),
            # A launch script that leaves --seq-length out has Slime's placeholder there.
            ({"max_tokens_per_gpu": 9000, "seq_length": 4096}, 9000),
            ({"max_tokens_per_gpu": 9000, "seq_length": 8192, "polar_max_trajectory_tokens": 5000}, 5000),
            ({"max_tokens_per_gpu": 1000, "polar_max_trajectory_tokens": 1000}, 1000),
            ({"polar_max_trajectory_tokens": 700}, 700),
            (
                {
                    "max_tokens_per_gpu": 9000,
                    "seq_length": 8192,
                    "polar_allow_single_sample_over_token_cap": True,
                },
                8192,
            ),
            (
                {
                    "max_tokens_per_gpu": 1000,
                    "seq_length": 8192,
                    "polar_allow_single_sample_over_token_cap": True,
                    "polar_max_trajectory_tokens": 5000,
                },
                5000,
            ),
        ],
    )
    def test_cap(self, changes, expected):
        """The trace cap follows from the trainer's capacity and the two keys that shape it."""
        assert resolve(**changes).max_tokens == expected

    @pytest.mark.parametrize(
        ("changes", "name"),
        [
            ({"max_tokens_per_gpu": 500, "context_parallel_size": 2}, "1000, which is max_tokens_per_gpu"),
            ({"max_tokens_per_gpu": 5000, "seq_length": 999}, "999, which is seq_length"),
            (
                {
                    "max_tokens_per_gpu": 5000,
                    "seq_length": 999,
                    "polar_allow_single_sample_over_token_cap": True,
                },
                "999, which is seq_length",
            ),
        ],
    )
    def test_above_the_trainers_capacity(self, changes, name):
        """A cap that the trainer could not hold is an error that names the capacity."""
        with pytest.raises(
            ConfigError, match=f"polar_max_trajectory_tokens is 1001: expected at most {name}"
        ):
            resolve(polar_max_trajectory_tokens=1001, **changes)


class TestFullyAsync:
    @pytest.mark.parametrize("name", ["colocate", "offload", "offload_rollout", "offload_train"])
    def test_refused_with_shared_gpus(self, name):
        """Sessions in flight and released GPU memory exclude each other; the error says why."""
        with pytest.raises(ConfigError, match=f"{name} is on.*engines must be quiet"):
            resolve(polar_fully_async=True, **{name: True})
        assert resolve(polar_fully_async=False, **{name: True})
        assert resolve(polar_fully_async=True, **{name: False})


class TestDerived:
    def test_limits(self):
        """The limits that follow from level, batch, group and interval."""
        config = resolve(
            polar_max_async_level=3, rollout_batch_size=4, n_samples_per_prompt=8, update_weights_interval=4
        )
        assert (config.max_groups_in_flight, config.max_sessions_in_flight, config.max_staleness) == (
            12,
            96,
            7,
        )

    @pytest.mark.parametrize(
        ("fraction", "sessions", "expected"),
        [(0.0, 8, 0), (0.5, 8, 4), (0.5, 7, 4), (1.0, 8, 8), (0.07, 100, 7), (0.1, 10, 1), (0.29, 100, 29)],
    )
    def test_min_complete_sessions(self, fraction, sessions, expected):
        """Rounding up is exact: 7 percent of 100 is 7, whatever binary fractions say."""
        assert (
            resolve(polar_min_complete_accept_fraction=fraction).min_complete_sessions(sessions) == expected
        )

    @pytest.mark.parametrize(
        ("fraction", "grace", "sessions", "expected"),
        [
            (0.0, 2, 16, None),
            (0.5, 2, 16, 10),
            (0.5, 0, 16, 8),
            (0.5, 8, 16, None),
            (1.0, 0, 16, None),
            (0.5, 2, 1, None),
        ],
    )
    def test_early_stop(self, fraction, grace, sessions, expected):
        """Stragglers are stopped after ceil(n f) + grace usable sessions, where that leaves any to stop."""
        config = resolve(polar_min_complete_accept_fraction=fraction, polar_early_stop_grace_sessions=grace)
        assert config.early_stop_min_usable_sessions(sessions) == expected

    def test_group_deadline(self):
        """A group's deadline is the key, else follows from the task's own timeout."""
        assert resolve().group_deadline(600) == 1380
        assert resolve(polar_group_timeout=50).group_deadline(600) == 50

    def test_fingerprint(self):
        """Equal configurations have equal fingerprints; any difference shows."""
        first = resolve()
        assert first.fingerprint == resolve().fingerprint
        others = [
            resolve(polar_rollout_url="http://h:1"),
            resolve(polar_task_template={"agent": {"harness": "other"}}),
            resolve(polar_max_async_level=3),
            resolve(gdpo_reward_keys=["a", "b"]),
        ]
        assert len({first.fingerprint, *(config.fingerprint for config in others)}) == 5

    def test_hashable_and_picklable(self):
        """A config is a dictionary key and travels to other processes with the same fingerprint."""
        config = resolve(polar_advantage_estimator="m:a", polar_advantage_estimator_kwargs={"x": [1]})
        assert {config: 1}[
            resolve(polar_advantage_estimator="m:a", polar_advantage_estimator_kwargs={"x": [1]})
        ] == 1
        thawed = pickle.loads(pickle.dumps(config))
        assert thawed == config
        assert thawed.fingerprint == config.fingerprint

    def test_describe_is_json_without_secrets(self, monkeypatch):
        """What goes into the run folder can be read by everybody."""
        monkeypatch.setenv("POLAR_CONTROL_PLANE_TOKEN", "s3cret")
        template = {
            "agent": {
                "harness": "shell",
                "env": {"OPENAI_API_KEY": "k-123", "HF_TOKEN": "t-123", "MODE": "x"},
            },
            "builder": {"strategy": "prefix_merging", "config": {"end_of_turn_token_id": 2}},
        }
        described = resolve(
            polar_rollout_url="http://user:hunter2@h:1",
            polar_task_template=template,
            gdpo_reward_keys=["a", "b"],
            rollout_batch_size=4,
        ).describe()
        text = json.dumps(described, allow_nan=False)
        for secret in ("s3cret", "hunter2", "k-123", "t-123"):
            assert secret not in text
        assert described["task_template"]["agent"]["env"]["MODE"] == "x"
        assert described["task_template"]["builder"]["config"] == {"end_of_turn_token_id": 2}
        assert (described["max_groups_in_flight"], described["gdpo_reward_keys"]) == (8, ["a", "b"])


class TestWarnings:
    def test_limits_are_logged_once(self, caplog):
        """Level 3 and interval 4 add up to samples 7 rollouts old, which is said once for all resolves."""
        with caplog.at_level(logging.INFO):
            for _ in range(3):
                resolve_polar_slime_config(make_args(polar_max_async_level=3, update_weights_interval=4))
        limits = [record for record in caplog.records if record.levelno == logging.INFO]
        assert len(limits) == 1
        assert "samples at most 7 rollouts old" in limits[0].getMessage()
        [warning] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING][
            :1
        ]
        assert "update_weights_interval 4 is above polar_max_async_level 3" in warning

    def test_a_plain_configuration_has_none(self):
        """Defaults and a sensible set-up give no warning."""
        assert warnings_of(rollout_batch_size=8, n_samples_per_prompt=8, reward_key="score") == []

    @pytest.mark.parametrize(
        ("name", "meant"),
        [
            ("polar_max_async_levle", "did you mean polar_max_async_level?"),
            ("polar-rollout-url", "did you mean polar_rollout_url?"),
            ("gdpo_reward_key", "did you mean gdpo_reward_keys?"),
            ("polar_zzz", "has no effect"),
        ],
    )
    def test_misspelt_keys(self, name, meant):
        """A key that nobody reads is told, with the nearest one."""
        [warning] = warnings_of(**{name: 1}, n_samples_per_prompt=2)
        assert warning.startswith(f"{name} is not a known key")
        assert meant in warning

    def test_a_key_that_a_template_uses_is_known(self):
        """Users may put their own values beside ours and name them in templates."""
        template = {"agent": {"harness": "shell", "model_name": "{args.polar_model}"}}
        assert warnings_of(polar_model="m", polar_task_template=template, n_samples_per_prompt=2) == []

    @pytest.mark.parametrize(
        ("changes", "warning"),
        [
            ({"update_weights_interval": 3}, "update_weights_interval 3 is above"),
            ({"polar_early_stop_grace_sessions": 1}, "polar_early_stop_grace_sessions has no effect"),
            ({"polar_candidate_pool_health_gate_min_observed_sessions": 4}, "has no effect"),
            ({"polar_advantage_estimator_kwargs": {"x": 1}}, "has no effect"),
            ({"polar_allow_single_sample_over_token_cap": True}, "nothing bounds a trace"),
            ({"polar_group_timeout": 60}, "polar_group_timeout 60 s is below the task's timeout_seconds 600"),
            ({"polar_train_agent_timeout": 700}, "polar_train_agent_timeout 700 s is not below"),
            ({"polar_eval_agent_timeout": 600}, "polar_eval_agent_timeout 600 s is not below"),
            ({"polar_request_timeout": 90, "polar_outage_timeout": 60}, "counts as an outage"),
            ({"polar_rollout_url": "http://polar:8080"}, "callbacks cannot arrive"),
            (
                {"polar_callback_host": "10.0.0.5", "polar_callback_bind_host": "127.0.0.1"},
                "callbacks cannot arrive unless something forwards them",
            ),
            ({"polar_candidate_pool_health_gate_enabled": True}, "may decide only after a replacement"),
            ({"reward_key": None}, "reward_key is None: expected 'score'"),
            ({"reward_key": "a", "polar_reward_key": "b"}, "pass --reward-key b"),
            ({"n_samples_per_prompt": 1}, "a lone trajectory has no siblings"),
            (
                {"polar_drop_all_wrong_groups": True, "global_batch_size": 16},
                "polar_drop_all_wrong_groups may leave fewer trajectories than global_batch_size 16",
            ),
            ({"log_passrate": True}, "a session may give several traces"),
        ],
    )
    def test_values_that_work_against_each_other(self, changes, warning):
        """Each contradiction is one sentence that names the keys."""
        found = warnings_of(**{"n_samples_per_prompt": 2, **changes})
        assert len(found) == 1
        assert warning in found[0]

    @pytest.mark.parametrize(
        "changes",
        [
            {"polar_rollout_url": "http://localhost:1"},
            {"polar_rollout_url": "http://polar:1", "polar_callback_host": "10.0.0.5"},
            {"polar_train_agent_timeout": 700, "polar_task_timeout_floor": 900},
            {
                "polar_task_template": {**TEMPLATE, "timeout_seconds": "{sample.metadata.t}"},
                "polar_group_timeout": 5,
            },
            {"polar_min_complete_accept_fraction": 0.5},
            {"polar_balance_all_correct_groups": True, "global_batch_size": 2},
            {"polar_balance_all_correct_groups": False, "global_batch_size": 64},
            {"log_passrate": False},
            {"gdpo_reward_keys": ["a", "b"], "polar_advantage_estimator": "gdpo"},
        ],
    )
    def test_values_that_go_together(self, changes):
        """No warning cries wolf."""
        assert warnings_of(n_samples_per_prompt=2, **changes) == []


class TestRewardSettings:
    def test_defaults_and_values(self):
        """The reward hooks need no rollout server to be configured."""
        settings = resolve_reward_settings(SimpleNamespace())
        assert (
            settings.slime_estimator,
            settings.rewards_normalization,
            settings.grpo_std_normalization,
        ) == (
            "grpo",
            True,
            True,
        )
        args = SimpleNamespace(
            advantage_estimator="gspo",
            rewards_normalization=False,
            grpo_std_normalization="false",
            polar_advantage_estimator="m:a",
            polar_advantage_estimator_kwargs="{x: 1}",
        )
        settings = resolve_reward_settings(args)
        assert (
            settings.slime_estimator,
            settings.rewards_normalization,
            settings.grpo_std_normalization,
        ) == (
            "gspo",
            False,
            False,
        )
        assert (settings.advantage_estimator, settings.advantage_estimator_kwargs) == ("m:a", {"x": 1})

    def test_require_reward_key(self):
        """A reward key that Slime's metrics cannot find stops a training at its start."""
        config = resolve()
        require_reward_key(SimpleNamespace(), config)
        require_reward_key(SimpleNamespace(reward_key="score"), config)
        for wrong in (None, "scroe"):
            with pytest.raises(ConfigError, match="expected 'score'"):
                require_reward_key(SimpleNamespace(reward_key=wrong), config)


class TestDescribeKeys:
    def test_rows(self):
        """Every key has a row with words for its default, form and meaning."""
        rows = {row["key"]: row for row in describe_keys()}
        assert len(rows) == len(KEYS) + len(SLIME_KEYS) + len(ENVIRONMENT_KEYS)
        assert all(
            row["meaning"].endswith(".") and row["default"] and row["allowed"] for row in rows.values()
        )
        assert rows["polar_task_template"]["default"] == "required"
        assert rows["polar_reward_key"]["default"] == "`reward_key`, else `score`"
        assert rows["polar_max_async_level"]["default"] == "2"
        assert rows["polar_fully_async"]["default"] == "false"
        assert rows["POLAR_CONTROL_PLANE_TOKEN"]["source"] == "environment"


class Status(Enum):
    PENDING = "pending"


def make_sample(**changes):
    fields = {
        "prompt": "Fix it.",
        "response": "",
        "label": "gold",
        "metadata": {"image": "img:1", "tests": [{"id": 1}]},
        "index": 24,
        "group_index": 3,
        "status": Status.PENDING,
    }
    return SimpleNamespace(**{**fields, **changes})


def render_payload(template=None, sample=None, args=None, **changes):
    config_changes = {name: changes.pop(name) for name in list(changes) if name.startswith("polar_")}
    args = args or make_args(
        **config_changes, **({} if template is None else {"polar_task_template": template})
    )
    config, _ = check_polar_slime_config(args)
    values = {"instruction": "Fix it.", "rollout_id": 5, "task_position": 1, "num_rollouts": 8, **changes}
    return render_task_payload(args=args, config=config, sample=sample or make_sample(), **values)


def render_text(template, sample=None, prompt_text="Fix it."):
    args = make_args(polar_instruction_template=template, model="m")
    config, _ = check_polar_slime_config(args)
    return render_instruction(
        args=args,
        config=config,
        sample=sample or make_sample(),
        prompt_text=prompt_text,
        rollout_id=5,
        task_position=1,
        num_rollouts=8,
    )


class TestRenderInstruction:
    def test_without_a_template_the_prompt_is_the_instruction(self):
        """Nothing is scanned or changed."""
        assert render_text(None, prompt_text="{x} {{y}} ") == "{x} {{y}} "

    def test_template(self):
        """All names of the contract are there, and the prompt's braces are not placeholders."""
        template = "{instruction} [{sample.label}] {args.model} {num_rollouts}={num_samples} "
        template += "{rollout_id} {task_position}"
        assert render_text(template, prompt_text="{args.model}") == "{args.model} [gold] m 8=8 5 1"

    def test_one_placeholder_of_another_type_is_text(self):
        """An instruction is always text."""
        assert render_text("{sample.metadata.tests}") == '[{"id": 1}]'

    @pytest.mark.parametrize(("template", "prompt"), [(None, ""), (None, " \n"), ("{sample.response}", "x")])
    def test_a_blank_instruction_is_an_error(self, template, prompt):
        """No task without an instruction is ever submitted; the error names the sample."""
        with pytest.raises(TemplateError, match="sample 24 of group 3 has a blank instruction"):
            render_text(template, prompt_text=prompt)


class TestRenderTaskPayload:
    def test_what_the_bridge_sets(self):
        """Id, instruction, number of samples and the scheduler's metadata stand beside the template's own."""
        payload = render_payload(
            {**TEMPLATE, "metadata": {"case": "{sample.metadata.image}"}, "timeout_seconds": 60}
        )
        assert payload == {
            "agent": {"harness": "shell"},
            "timeout_seconds": 60,
            "task_id": "polar-slime-5-3",
            "instruction": "Fix it.",
            "num_samples": 8,
            "metadata": {"case": "img:1", "group_id": 3, "policy_version": 5, "rollout_step": 5},
        }

    def test_the_worker_knows_better(self):
        """Group and policy version may be given, and win over what a template put there."""
        template = {**TEMPLATE, "metadata": {"group_id": "template's"}}
        payload = render_payload(template, group_id=77, policy_version="v9")
        assert payload["metadata"] == {"group_id": 77, "policy_version": "v9", "rollout_step": 5}

    def test_sample_names(self):
        """A placeholder keeps the type of what it names; the status is its word."""
        names = ("prompt", "response", "label", "metadata", "index", "group_index", "status")
        template = {**TEMPLATE, "metadata": {name: f"{{sample.{name}}}" for name in names}}
        sample = make_sample(prompt=[{"role": "user", "content": "{x}"}])
        metadata = render_payload(template, sample)["metadata"]
        assert metadata["prompt"] == [{"role": "user", "content": "{x}"}]
        assert metadata["metadata"] == {"image": "img:1", "tests": [{"id": 1}]}
        assert (metadata["index"], metadata["group_index"], metadata["label"]) == (24, 3, "gold")
        assert (metadata["status"], metadata["response"]) == ("pending", "")

    def test_the_router_is_looked_up_only_where_asked_for(self):
        """A template without the router's address renders before the router runs."""
        template = {"agent": {"harness": "x", "env": {"URL": "{sglang.router_base_url}/v1"}}}
        args = make_args(polar_task_template=template, sglang_router_ip="h", sglang_router_port=1)
        assert render_payload(args=args)["agent"]["env"]["URL"] == "http://h:1/v1"
        with pytest.raises(ConfigError, match="SGLang router is not known"):
            render_payload(template)

    def test_the_task_id_is_safe(self):
        """Whatever an id template renders to is usable as a path, and a suffix ends it."""
        payload = render_payload(
            polar_task_id_template="{sample.metadata.image}/x", task_id_suffix="-eval-d-5-1"
        )
        assert payload["task_id"].startswith("img-1-x-")
        assert payload["task_id"].endswith("-eval-d-5-1")
        TaskRequest.from_payload(payload)

    def test_an_unknown_name_says_where(self):
        """The error names the place in the template, the path and the near name."""
        template = {"agent": {"harness": "x", "env": {"A": "{sample.metadata.imge}"}}}
        with pytest.raises(TemplateError, match=r"polar_task_template.agent.env.A: .*did you mean 'image'"):
            render_payload(template)

    @pytest.mark.parametrize(
        ("template", "problem"),
        [
            ({"agent": "{sample.label}"}, "polar_task_template.agent rendered to 'gold': expected a mapping"),
            ({**TEMPLATE, "metadata": "{sample.label}"}, "polar_task_template.metadata rendered to 'gold'"),
        ],
    )
    def test_what_must_be_a_mapping(self, template, problem):
        """A placeholder of the wrong type is told before the server is asked."""
        with pytest.raises(TemplateError, match=problem):
            render_payload(template)

    def test_rendering_leaves_sample_and_template_alone(self):
        """Two tasks of one template and sample share nothing."""
        template = {"agent": "{sample.metadata.agent}", "runtime": {"image": "i", "env": {"A": "1"}}}
        sample = make_sample(
            metadata={
                "agent": {"harness": "x"},
                "agent_step_limit": 3,
                "runtime_env": {"B": "2"},
                "agent_timeout": 9,
            }
        )
        before = copy.deepcopy(sample.metadata)
        args = make_args(polar_task_template=template)
        first = render_payload(args=args, sample=sample)
        first["agent"]["harness"] = first["runtime"]["env"]["A"] = "changed"
        assert sample.metadata == before
        assert render_payload(args=args, sample=sample)["runtime"]["env"] == {"A": "1", "B": "2"}

    @given(st.text(max_size=30))
    def test_a_prompt_reaches_the_server_unchanged(self, prompt):
        """No prompt can inject a placeholder; what is sent is what was asked."""
        template = {
            "agent": {"harness": "shell", "env": {"P": "<{instruction}>"}},
            "metadata": {"p": "{sample.prompt}"},
        }
        payload = render_payload(template, make_sample(prompt=prompt), instruction=prompt)
        sent = json.loads(encode_task_request(TaskRequest.from_payload(payload)))
        assert (sent["instruction"], sent["agent"]["env"]["P"], sent["metadata"]["p"]) == (
            prompt,
            f"<{prompt}>",
            prompt,
        )


class TestTaskShape:
    @pytest.mark.parametrize(
        ("timeout", "floor", "expected"),
        [
            (60, 90, 90),
            (120, 90, 120),
            (None, 90, None),
            (None, 900, 900),
            ("120", 90, "120"),
            (60, None, 60),
        ],
    )
    def test_timeout_floor(self, timeout, floor, expected):
        """A task's timeout is at least the floor; a larger one, or Polar's default, stays."""
        template = TEMPLATE if timeout is None else {**TEMPLATE, "timeout_seconds": timeout}
        payload = render_payload(template, polar_task_timeout_floor=floor)
        assert payload.get("timeout_seconds") == expected

    @pytest.mark.parametrize(
        ("own", "evaluation", "expected"),
        [(None, False, 100), (None, True, 200), (30, False, 30), (30.5, True, 30.5)],
    )
    def test_agent_timeout(self, own, evaluation, expected):
        """Training and evaluation have their own limits for the agent, and a sample's own is stronger."""
        sample = make_sample(metadata={"agent_timeout": own})
        payload = render_payload(
            sample=sample, evaluation=evaluation, polar_train_agent_timeout=100, polar_eval_agent_timeout=200
        )
        assert payload["metadata"]["agent_timeout"] == expected

    def test_no_agent_timeout(self):
        """Without any limit no key is sent, and a template's own stays."""
        assert "agent_timeout" not in render_payload()["metadata"]
        template = {**TEMPLATE, "metadata": {"agent_timeout": 7}}
        assert render_payload(template)["metadata"]["agent_timeout"] == 7

    @pytest.mark.parametrize(
        ("agent", "setting"),
        [
            ({"harness": "mini_swe_agent"}, "step_limit"),
            ({"harness": "claude_code"}, "max_turns"),
            ({"harness": "hermes", "settings": {"toolsets": "a", "max_turns": 90}}, "max_turns"),
            ({"harness": "openhands_sdk"}, "max_iterations"),
            ({"import_path": "m:C"}, "step_limit"),
        ],
    )
    def test_step_limit(self, agent, setting):
        """The limit goes where the harness looks for it, beside its other settings."""
        payload = render_payload({"agent": agent}, make_sample(metadata={"agent_step_limit": np.int64(12)}))
        assert payload["agent"]["settings"] == {**agent.get("settings", {}), setting: 12}

    def test_runtime_env_and_command(self):
        """A sample's variables are merged in, and its command runs after an existing one."""
        template = {
            **TEMPLATE,
            "runtime": {"image": "i", "env": {"A": "1", "B": "1"}, "direct_exec_init_command": "a;\n"},
        }
        sample = make_sample(metadata={"runtime_env": {"B": "2"}, "runtime_init_command": " b "})
        runtime = render_payload(template, sample)["runtime"]
        assert runtime["env"] == {"A": "1", "B": "2"}
        assert runtime["direct_exec_init_command"] == "a && b"
        template = {**TEMPLATE, "runtime": {"image": "i"}}
        assert render_payload(template, sample)["runtime"]["direct_exec_init_command"] == "b"

    @pytest.mark.parametrize("template", [TEMPLATE, {**TEMPLATE, "runtime": None}])
    def test_a_default_runtime_cannot_be_changed(self, template):
        """A key that could have no effect is an error that says what to write."""
        with pytest.raises(
            ConfigError, match="sample 24 of group 3 has metadata.runtime_env.*write the runtime out"
        ):
            render_payload(template, make_sample(metadata={"runtime_env": {"A": "1"}}))

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *(("agent_timeout", value) for value in (0, -1, True, math.nan, math.inf, "60", [], {})),
            *(("agent_step_limit", value) for value in (0, 1.5, True, "3", math.nan)),
            *(
                ("runtime_env", value)
                for value in ([], "A=1", {"A": 1}, {"A": None}, {"": "x"}, {1: "x"}, {"A=B": "x"})
            ),
            *(("runtime_init_command", value) for value in ("", "  ", 5, ["ls"])),
        ],
    )
    def test_malformed_values_name_the_sample(self, name, value):
        """A bad row of a dataset is found by the error."""
        template = {**TEMPLATE, "runtime": {"image": "i"}}
        with pytest.raises(ConfigError, match=rf"sample 24 of group 3: metadata.{name} is .*: expected "):
            render_payload(template, make_sample(metadata={name: value}))

    def test_early_stop_is_asked_for_in_training_only(self):
        """An evaluation's denominator is never cut; a group of one never stopped."""
        keys = {"polar_min_complete_accept_fraction": 0.5}
        assert render_payload(**keys)["early_stop_min_usable_sessions"] == 6
        assert "early_stop_min_usable_sessions" not in render_payload(evaluation=True, **keys)
        assert "early_stop_min_usable_sessions" not in render_payload(num_rollouts=1, **keys)
        assert "early_stop_min_usable_sessions" not in render_payload()

    def test_metadata_that_is_no_mapping(self):
        """A sample without metadata is ordinary."""
        assert render_payload(sample=make_sample(metadata=None))["metadata"]["group_id"] == 3
