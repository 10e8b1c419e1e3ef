"""A configuration with several mistakes: all of them at once, each with its key, value, form and remedy."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from analysis.lab.polar_server.testing import FaultScript, SessionProfile, serve_polar
from slime_bridge import cli
from slime_bridge.advantages import get_estimator
from slime_bridge.config import resolve_polar_slime_config
from slime_bridge.doctor import Severity
from slime_bridge.doctor.configuration import check_configuration
from slime_bridge.errors import AdvantageError, ConfigError
from slime_bridge.rollout import generate_rollout_polar_async, stop_global_worker
from tests.slime_bridge.rollouts import Source, make_args

TEMPLATE = {"agent": {"harness": "lab", "model_name": "m"}, "evaluator": {"strategy": "session_completed"}}
GOOD = {"polar_rollout_url": "http://127.0.0.1:9", "polar_task_template": TEMPLATE}


def problems(**keys: object) -> dict[str, str]:
    """Return the error of each wrong key."""
    with pytest.raises(ConfigError) as raised:
        resolve_polar_slime_config(SimpleNamespace(**keys))
    found = raised.value.problems or (raised.value,)
    assert len({error.key for error in found}) == len(found)
    return {error.key: str(error) for error in found}


def test_every_wrong_key_is_named_in_one_error() -> None:
    """Wrong types, bounds, a missing key, a missing address and a contradiction, none hiding another."""
    found = problems(
        polar_max_async_level=-1,
        polar_group_timeout="soon",
        polar_aborted_turns="x",
        polar_fully_async=True,
        offload=True,
        max_tokens_per_gpu=10,
        polar_max_trajectory_tokens=100,
    )
    assert found["polar_max_async_level"] == "polar_max_async_level is -1: expected an integer of at least 1"
    assert found["polar_group_timeout"] == "polar_group_timeout is 'soon': expected a number above 0"
    assert "expected one of `mask`, `drop`, `keep`" in found["polar_aborted_turns"]
    assert "is not set" in found["polar_task_template"]
    assert "neither polar_rollout_url nor polar_topology_path" in found["polar_rollout_url"]
    assert "offload is on" in found["polar_fully_async"]
    assert "expected at most 10" in found["polar_max_trajectory_tokens"]
    assert len(found) == 7


def test_the_error_for_several_keys_holds_each_message() -> None:
    """A training that cannot start says all of it in its one traceback."""
    with pytest.raises(ConfigError, match="2 keys cannot be used") as raised:
        resolve_polar_slime_config(
            SimpleNamespace(**GOOD, polar_max_async_level=0, polar_callback_port=70000)
        )
    assert all(f"\n- {error}" in str(raised.value) for error in raised.value.problems)


def test_one_wrong_key_is_its_own_error() -> None:
    """Nothing is wrapped around it."""
    with pytest.raises(ConfigError, match="^polar_max_async_level is 0") as raised:
        resolve_polar_slime_config(SimpleNamespace(**GOOD, polar_max_async_level=0))
    assert (raised.value.key, raised.value.problems) == ("polar_max_async_level", ())


def test_a_wrong_value_is_no_missing_one() -> None:
    """A key that was complained about is not complained about again for what follows from its absence."""
    assert set(problems(polar_rollout_url="ftp://x", polar_task_template=3)) == {
        "polar_rollout_url",
        "polar_task_template",
    }


def test_a_list_of_hyper_parameters_is_refused_by_name() -> None:
    """They are keywords of the estimator, so only a mapping can be meant."""
    found = problems(**GOOD, polar_advantage_estimator="grpo", polar_advantage_estimator_kwargs=[1])
    assert "is [1]: expected a mapping" in found["polar_advantage_estimator_kwargs"]


@pytest.mark.parametrize("kwargs", [[1], "epsilon", {1: 2}])
def test_an_estimator_takes_names_and_values(kwargs: object) -> None:
    """Also where no configuration stands before it, as in a notebook."""
    for name in ("grpo", "tests.slime_bridge.test_config_problems:zero"):
        with pytest.raises(AdvantageError, match="expected a mapping of names to values"):
            get_estimator(name, kwargs)  # type: ignore[arg-type]


def zero(rewards, groups, trajectories):
    return 0 * rewards


@pytest.mark.parametrize("hook", [None, "slime_bridge.reward_post_process.post_process_rewards"])
def test_an_estimator_that_cannot_be_made_stops_a_training_before_it_generates(hook: str | None) -> None:
    """Nothing is drawn and nothing is submitted; a trainer that uses another hook is not asked."""
    extra = {} if hook is None else {"custom_reward_post_process_path": hook}
    source = Source()
    with serve_polar(FaultScript(sessions=SessionProfile(duration=0.02))) as polar:
        args = make_args(polar.url, polar_advantage_estimator="gropo", **extra)
        with pytest.raises(AdvantageError, match="did you mean 'grpo'"):
            generate_rollout_polar_async(args, 0, source)
        assert (source.drawn, polar.submits) == ([], 0)
        args.custom_reward_post_process_path = "my.own"
        try:
            assert len(generate_rollout_polar_async(args, 0, source).samples) == 4
        finally:
            stop_global_worker()


class TestDoctor:
    def test_each_problem_is_a_finding_with_its_remedy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The default is said where leaving the key out helps; what is required is shown as an example."""
        monkeypatch.setenv("POLAR_ROLLOUT_EXAMPLE_COUNT", "many")
        found, config = check_configuration(
            SimpleNamespace(
                polar_rollout_url="http://127.0.0.1:9",
                polar_fully_async="maybe",
                polar_task_templat={},
                polar_unknwon=3,
            )
        )
        assert config is None
        fixes = {item.summary.split()[0]: item.fix for item in found if item.severity is Severity.ERROR}
        assert fixes["polar_fully_async"].endswith("left out, it is false")
        assert "--set polar_fully_async=" in fixes["polar_fully_async"]
        assert "{agent: {harness:" in fixes["polar_task_template"]
        assert "environment variable" in fixes["POLAR_ROLLOUT_EXAMPLE_COUNT"]
        warnings = [item.summary for item in found if item.severity is Severity.WARNING]
        assert (
            "polar_task_templat is not a known key and has no effect: did you mean polar_task_template?"
            in (warnings)
        )
        # What every key begins with is no likeness.
        assert "polar_unknwon is not a known key and has no effect" in warnings

    def test_an_estimator_that_cannot_be_made_is_an_error(self) -> None:
        """Slime would make it after the first rollout, when hours of generation are paid for."""
        found, _ = check_configuration(SimpleNamespace(**GOOD, polar_advantage_estimator="gropo"))
        [error] = [item for item in found if item.severity is Severity.ERROR]
        assert "unknown advantage estimator 'gropo' (did you mean 'grpo'?)" in error.summary

    @pytest.mark.parametrize("text", ["import sys; sys.exit(3)", "1 / 0", "raise OSError('no disk')"])
    def test_a_hook_whose_module_leaves_is_a_finding(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
    ) -> None:
        """Importing runs the module: what it raises, `SystemExit` included, does not end the examination."""
        name = f"leaving_{abs(hash(text))}"
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        found, _ = check_configuration(SimpleNamespace(**GOOD, dynamic_sampling_filter_path=f"{name}.keep"))
        [error] = [item for item in found if item.severity is Severity.ERROR]
        assert f"dynamic_sampling_filter_path is '{name}.keep', which cannot be loaded" in error.summary

    def test_the_command_shows_them_all(self, tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
        """Exit code 1, one line of error for each, and their number at the end."""
        path = tmp_path / "c.yaml"
        path.write_text(yaml.safe_dump({**GOOD, "polar_max_async_level": 0, "polar_callback_port": -1}))
        assert cli.main(["doctor", "-c", str(path)]) == 1
        said = capsys.readouterr().out
        assert said.count("\nERROR ") == 2
        assert "2 errors in" in said.splitlines()[-1]


class TestRender:
    def test_what_was_not_given_is_no_warning(self, tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
        """`n_samples_per_prompt` stands on Slime's command line; a value that is given is judged."""
        path = tmp_path / "c.yaml"
        path.write_text(yaml.safe_dump(GOOD))
        assert cli.main(["render", "-c", str(path), "--prompt", "x"]) == 0
        assert capsys.readouterr().err == ""
        assert cli.main(["render", "-c", str(path), "--prompt", "x", "--set", "n_samples_per_prompt=1"]) == 0
        assert "n_samples_per_prompt is 1" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("row", "setting", "hint"),
        [
            ('{"prompt": "a"}', "x=1", "--set input_key=prompt"),
            ('{"question": "a", "id": 3}', "x=1", "--set input_key=question"),
            ('{"odd": "a"}', "x=1", "--set input_key=COLUMN"),
            ('{"input": "a", "answer": 3}', "label_key=label", "--set label_key=answer"),
        ],
    )
    def test_a_column_of_another_name_gets_a_hint(
        self, tmp_path, capsys: pytest.CaptureFixture[str], row: str, setting: str, hint: str
    ) -> None:
        """The option that names the column, with the likely one filled in."""
        path, data = tmp_path / "c.yaml", tmp_path / "p.jsonl"
        path.write_text(yaml.safe_dump(GOOD))
        data.write_text(f"{row}\n")
        call = ["render", "-c", str(path), "--prompt-data", str(data), "--set", setting]
        assert cli.main(call) == 2
        assert hint in capsys.readouterr().err
