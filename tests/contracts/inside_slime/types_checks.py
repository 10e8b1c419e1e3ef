"""The stand-ins beside the real types: same fields, same behaviour, dumps that load either way."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from types import SimpleNamespace
from typing import Any

from slime_bridge import _slime, _stand_in
from tests.contracts.inside_slime.samples import converted_groups


def _real() -> Any:
    from slime.utils.types import Sample

    return Sample


def check_the_door_finds_real_slime() -> None:
    """The bridge uses Slime's own types where they are."""
    from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput

    assert _slime.sample_class() is _real()
    assert _slime.rollout_output_classes() == (RolloutFnTrainOutput, RolloutFnEvalOutput)
    assert _slime.trajectory_key(_real()) == "group_id"
    info = _slime.slime_info()
    assert (info.present, info.namesake, info.problem) == (True, False, None)


def check_the_door_finds_the_data_source() -> None:
    """The bridge's data source derives from Slime's."""
    from slime.rollout.data_source import RolloutDataSourceWithBuffer

    assert _slime.data_source_base() is RolloutDataSourceWithBuffer


def check_fields_are_equal() -> None:
    """Names, order, defaults."""
    real, own = dataclasses.fields(_real()), dataclasses.fields(_stand_in.Sample)
    assert [f.name for f in real] == [f.name for f in own]
    assert _real()().to_dict() == _stand_in.Sample().to_dict()


def check_statuses_are_equal() -> None:
    """The same names with the same values."""
    assert {s.name: s.value for s in _real().Status} == {s.name: s.value for s in _stand_in.Sample.Status}


def check_methods_have_equal_signatures() -> None:
    """Whatever can be called on one can be called on the other in the same way."""
    for name in ("to_dict", "from_dict", "get_reward_value", "update_from_meta_info"):
        real, own = (inspect.signature(getattr(cls, name)) for cls in (_real(), _stand_in.Sample))
        assert list(real.parameters) == list(own.parameters), name


def check_outputs_are_equal() -> None:
    """Fields and defaults of the two outputs."""
    from slime.rollout import base_types

    for name in ("RolloutFnTrainOutput", "RolloutFnEvalOutput"):
        real, own = (
            dataclasses.fields(getattr(base_types, name)),
            dataclasses.fields(getattr(_stand_in, name)),
        )
        assert [(f.name, f.default) for f in real] == [(f.name, f.default) for f in own]


def check_dumps_load_either_way() -> None:
    """A sample dumped by one is the same sample in the other, counters and extra attributes included."""
    for group in converted_groups():
        for sample in group:
            sample.spec_info.add(
                {"spec_accept_token_num": 3, "spec_draft_token_num": 4, "completion_tokens": 5}
            )
            sample.prefix_cache_info.add({"cached_tokens": 2, "prompt_tokens": 8})
            sample.trace = {"version": 1}
            plain = sample.to_dict()
            own = _stand_in.Sample.from_dict(plain)
            assert own.to_dict() == plain
            assert _real().from_dict(own.to_dict()) == sample


def check_older_dumps_load_alike() -> None:
    """The legacy key of the trajectory."""
    for extra in ({"rollout_id": 7}, {"rollout_id": 7, "group_id": 3}, {"rollout_id": 7, "group_id": None}):
        plain = {"status": "completed", **extra}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            assert _real().from_dict(plain).group_id == _stand_in.Sample.from_dict(plain).group_id


def check_meta_info_is_taken_over_alike() -> None:
    """Engine answers change both in the same way."""
    args = SimpleNamespace(sglang_speculative_algorithm="EAGLE")
    for finish in ("stop", "length", "abort", "tool_calls"):
        meta = {
            "finish_reason": {"type": finish},
            "weight_version": "2",
            "cached_tokens": 1,
            "prompt_tokens": 2,
        }
        samples = [_real()(), _stand_in.Sample()]
        for sample in samples:
            sample.update_from_meta_info(args, meta)
        assert samples[0].to_dict() == samples[1].to_dict()


def check_reward_values_alike() -> None:
    """Also where they are errors."""
    for reward in (0.5, {"score": 1.0}, None):
        for key in (None, "score", "other"):
            answers = []
            for cls in (_real(), _stand_in.Sample):
                try:
                    answers.append(cls(reward=reward).get_reward_value(SimpleNamespace(reward_key=key)))
                except (KeyError, TypeError) as exc:
                    answers.append(type(exc).__name__)
            assert answers[0] == answers[1]


def check_converted_samples_are_slimes() -> None:
    """With Slime installed, conversion gives real samples, placeholders included."""
    for group in converted_groups():
        assert all(type(sample) is _real() for sample in group)
