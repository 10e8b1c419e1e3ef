"""The filter that asks whether a group gives anybody an advantage."""

from types import SimpleNamespace

import pytest

from analysis.lab.polar_server.testing import Fault, FaultScript, SessionProfile, serve_polar
from slime_bridge import _slime
from slime_bridge.errors import ConfigError
from slime_bridge.reward_post_process import post_process_rewards
from slime_bridge.rollout import generate_rollout_polar_async, stop_global_worker
from slime_bridge.sampling_filters import check_trained_reward_nonzero_std
from tests.slime_bridge.rollouts import Source, make_args

PATH = "slime_bridge.sampling_filters.check_trained_reward_nonzero_std"
ARGS = SimpleNamespace(reward_key="score", advantage_estimator="grpo", rewards_normalization=True)


def group(*sessions):
    """Samples of one group: a session is its rewards, one per trace; None stands for one that failed."""
    sample = _slime.sample_class()
    samples = []
    for number, rewards in enumerate(sessions):
        failed = rewards is None
        status = sample.Status.ABORTED if failed else sample.Status.COMPLETED
        for reward in [0.0] if failed else rewards:
            one = sample(index=number, group_index=0, reward={"score": reward}, response_length=3)
            one.status, one.loss_mask, one.remove_sample = status, [int(not failed)] * 3, failed
            samples.append(one)
    return samples


@pytest.mark.parametrize(
    ("sessions", "keep", "reason"),
    [
        ([[1.0], [0.0]], True, None),
        ([[1.0], [1.0], None], False, "zero_std_1.0"),
        ([[0.0], None, [0.0]], False, "zero_std_0.0"),
        ([[1.0], [0.0], None], True, None),
        ([[1.0], None, None], False, "zero_std_1.0"),
        ([None, None], False, "no_valid_trajectory"),
        ([], False, "no_valid_trajectory"),
        ([[1.0, 0.0], [0.5]], False, "zero_std_0.5"),
        ([[1.0, 0.0], [1.0]], True, None),
        ([[None], [1.0]], False, "zero_std_1.0"),
        ([[float("nan")], [1.0], [0.0]], True, None),
    ],
)
def test_only_valid_trajectories_are_compared(sessions, keep, reason):
    """What failed, has no reward or nothing to train on neither makes a difference nor hides one."""
    output = check_trained_reward_nonzero_std(ARGS, group(*sessions), more=1)
    assert (output.keep, output.reason) == (keep, reason)


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_what_is_dropped_would_have_trained_nothing(reward):
    """The production estimator gives such a group no advantage, crash or not."""
    samples = group([reward], [reward], None)
    assert not check_trained_reward_nonzero_std(ARGS, samples).keep
    assert post_process_rewards(ARGS, samples)[1] == [0.0, 0.0, 0.0]


def test_a_wrong_key_is_an_error():
    """Nothing is dropped for a typing error."""
    with pytest.raises(ConfigError, match="reward_key"):
        check_trained_reward_nonzero_std(SimpleNamespace(reward_key="typo"), group([1.0], [0.0]))


def test_a_crash_is_no_spread():
    """Through the hook: groups with one crash and otherwise equal rewards are replaced."""
    faults = [
        Fault("session_error", sessions=[0]),
        Fault("reward", instruction="prompt [2468]$", sessions=[1], value=0.0),
    ]
    script = FaultScript(sessions=SessionProfile(duration=0.02, reward=1.0), faults=faults)
    with serve_polar(script) as polar:
        args = make_args(polar.url, dynamic_sampling_filter_path=PATH, n_samples_per_prompt=3)
        output = generate_rollout_polar_async(args, 0, Source(n=3))
        stop_global_worker()
    assert [samples[0].group_index for samples in output.samples] == [2, 4, 6, 8]
    assert output.metrics["rollout/dynamic_filter/drop_zero_std_1.0"] >= 4
