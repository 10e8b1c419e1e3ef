"""The stand-in data source: numbering, epochs, buffer, state, and rows that are wrong."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace

import pytest

from slime_bridge._stand_in_data import RolloutDataSourceWithBuffer
from slime_bridge.errors import DataSourceError


def rows(count):
    return [{"input": f"p{i}", "label": str(i), "metadata": {"i": i}} for i in range(count)]


def source(**args):
    return RolloutDataSourceWithBuffer(SimpleNamespace(**{"n_samples_per_prompt": 2, **args}))


def prompts(groups):
    return [group[0].prompt for group in groups]


def test_numbers_never_repeat():
    """Group and sample numbers identify trajectories over the whole run."""
    groups = source(prompt_data=rows(3)).get_samples(4)
    assert [group[0].group_index for group in groups] == [0, 1, 2, 3]
    assert [sample.index for group in groups for sample in group] == list(range(8))
    assert groups[0][0].metadata is not groups[0][1].metadata


def test_a_request_may_wrap_more_than_once_and_loses_nothing():
    """Slime's own source returns fewer groups than asked when a request spans more than one epoch."""
    data = source(prompt_data=rows(3))
    data.get_samples(1)
    assert prompts(data.get_samples(8)) == ["p1", "p2", "p0", "p1", "p2", "p0", "p1", "p2"]
    assert data.epoch_id == 2


def test_shuffle_is_slimes_permutation():
    """The order of an epoch is that of `random.seed(seed + epoch)`, so that runs can be compared."""
    data = source(prompt_data=rows(10), rollout_shuffle=True, rollout_seed=7)
    order = list(range(10))
    random.Random(7).shuffle(order)
    assert prompts(data.get_samples(10)) == [f"p{i}" for i in order]
    order = list(range(10))
    random.Random(8).shuffle(order)
    assert prompts(data.get_samples(10)) == [f"p{i}" for i in order]


def test_buffer_comes_first_and_takes_all_or_nothing():
    """Returned groups are handed out again before new ones; a wrong group changes nothing."""
    data = source(prompt_data=rows(4))
    first, second = data.get_samples(2)
    with pytest.raises(DataSourceError, match="groups of 2"):
        data.add_samples([first, second[:1]])
    assert data.get_buffer_length() == 0
    data.add_samples([second, first])
    data.add_samples([])
    assert prompts(data.get_samples(3)) == ["p1", "p0", "p2"]


def take_last(args, rollout_id, buffer, num_samples):
    taken = buffer[-num_samples:]
    del buffer[-num_samples:]
    return taken


def test_buffer_filter_is_honoured():
    """The filter named by path picks what leaves the buffer."""
    data = source(prompt_data=rows(4), buffer_filter_path=f"{__name__}.take_last")
    data.buffer_filter = take_last
    data.add_samples(data.get_samples(3))
    assert prompts(data.get_samples(1)) == ["p2"]


def test_buffer_filter_path_is_imported():
    """A dotted path to a function is enough."""
    data = source(prompt_data=rows(1), buffer_filter_path="operator.itemgetter")
    assert data.buffer_filter.__name__ == "itemgetter"


def test_state_goes_round(tmp_path):
    """A resumed source continues where the saved one stood, shuffle included."""
    args = {"prompt_data": rows(5), "rollout_shuffle": True, "save": str(tmp_path), "load": str(tmp_path)}
    data = source(**args)
    data.get_samples(7)
    data.update_metadata({"k": 1})
    data.save(3)
    expected = data.get_samples(5)
    resumed = source(**args)
    resumed.load(3)
    assert resumed.get_metadata() == {"k": 1}
    got = resumed.get_samples(5)
    assert prompts(got) == prompts(expected)
    assert [g[0].index for g in got] == [g[0].index for g in expected]
    assert not list(tmp_path.rglob("*.part"))


def test_loading_nothing_changes_nothing(tmp_path):
    """A fresh start asks for a state that is not there."""
    data = source(prompt_data=rows(2), load=str(tmp_path))
    data.load(-1)
    data.load()
    assert data.sample_offset == 0
    source(prompt_data=rows(2)).save(1)


def test_jsonl_with_a_slice(tmp_path):
    """Paths are read as Slime reads them; blank lines do not count."""
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows(5)).replace("\n", "\n\n", 1))
    assert prompts(source(prompt_data=f"{path}@[1:3]", label_key="label").get_samples(2)) == ["p1", "p2"]
    assert len(source(prompt_data=f"{path}@[3:]")) == 2
    assert len(source(prompt_data=str(path))) == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{broken", ":1: not JSON"),
        ("[1]", ":1: a row must be an object"),
        ('{"other": 1}', "no column 'input'"),
    ],
)
def test_bad_rows_are_errors(tmp_path, text, message):
    """A prompt that cannot be read must not silently vanish from the epoch."""
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    with pytest.raises(DataSourceError, match=message):
        source(prompt_data=str(path))


def test_other_formats_and_missing_labels_are_errors(tmp_path):
    """Parquet needs Slime; a label column that is configured must be there."""
    with pytest.raises(DataSourceError, match="only .jsonl"):
        source(prompt_data="prompts.parquet")
    with pytest.raises(DataSourceError, match="no column 'answer'"):
        source(prompt_data=rows(1), label_key="answer")


def test_tools_travel_in_the_metadata():
    """Tools may be a list or its JSON text."""
    tools = [{"type": "function"}]
    data = source(prompt_data=[{"input": "a", "tools": tools}, {"input": "b", "tools": json.dumps(tools)}])
    assert [group[0].metadata["tools"] for group in data.get_samples(2)] == [tools, tools]


def test_without_prompts():
    """No dataset gives bare samples, an empty one gives nothing."""
    assert prompts(source(rollout_global_dataset=False, prompt_data=rows(2)).get_samples(1)) == [""]
    assert source(prompt_data=[]).get_samples(2) == []
    assert len(source()) == 0
