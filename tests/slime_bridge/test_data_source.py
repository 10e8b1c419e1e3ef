"""The data source: whole epochs, and checkpoints after which every prompt is trained on, none forgotten.

Each test runs over the stand-in, and over real Slime's source where SLIME_DIR names a checkout.
"""

from __future__ import annotations

import datetime
import json
import os
import pickle
import subprocess
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slime_bridge import data_source
from slime_bridge._data_state import decode_group, encode_group, read_state, state_path, write_state
from slime_bridge.data_source import ceil_to_batch_size
from slime_bridge.errors import DataSourceError

Make = Callable[..., Any]


@pytest.fixture(params=["stand-in", pytest.param("slime", marks=pytest.mark.slime)])
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Make data sources over a JSONL file of numbered prompts."""
    if request.param == "slime":
        _use_real_slime(monkeypatch)
    monkeypatch.setattr(data_source, "_classes", {})

    def build(
        prompts: int = 30, batch: int = 16, n: int = 2, rows: list[Any] | None = None, **extra: Any
    ) -> Any:
        path = tmp_path / "prompts.jsonl"
        rows = rows or [{"input": f"prompt {i}", "metadata": {"id": i}} for i in range(prompts)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        defaults = dict.fromkeys(
            ("dump_details", "rollout_max_prompt_len", "multimodal_keys", "label_key", "buffer_filter_path")
        )
        args = SimpleNamespace(
            **defaults,
            **dict(
                rollout_global_dataset=True, prompt_data=str(path), hf_checkpoint="none", input_key="input"
            ),
            **dict(metadata_key="metadata", tool_key="tools", apply_chat_template=False, rollout_seed=42),
            **dict(apply_chat_template_kwargs={}, n_samples_per_prompt=n, rollout_batch_size=batch),
            save=str(tmp_path / "state"),
            load=str(tmp_path / "state"),
            rollout_shuffle=True,
        )
        vars(args).update(extra)
        return data_source.CeilEpochRolloutDataSourceWithBuffer(args)

    yield build
    for name in [name for name in sys.modules if name.partition(".")[0] == "slime"]:
        del sys.modules[name]


def _use_real_slime(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = os.environ.get("SLIME_DIR")
    if not folder:
        pytest.skip("SLIME_DIR names no checkout")
    monkeypatch.syspath_prepend(folder)
    if "ray" not in sys.modules:
        ray = types.ModuleType("ray")
        ray.remote = lambda target: target  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "ray", ray)
    module = import_module("slime.rollout.data_source")
    for loader in ("load_tokenizer", "load_processor"):
        monkeypatch.setattr(module, loader, lambda *args, **kwargs: None)


def _ids(groups: list[list[Any]]) -> list[int]:
    return [group[0].metadata["id"] for group in groups]


def _keys(groups: list[list[Any]]) -> list[int]:
    return [group[0].group_index for group in groups]


@pytest.mark.parametrize(("size", "batch", "wanted"), [(30, 16, 32), (32, 16, 32), (1, 8, 8), (0, 8, 0)])
def test_sizes_round_up_to_whole_batches(size: int, batch: int, wanted: int) -> None:
    """The tail of the data counts as a batch."""
    assert ceil_to_batch_size(size, batch) == wanted


def test_a_batch_of_nothing_is_an_error() -> None:
    """A batch size below 1 has no ceiling."""
    with pytest.raises(DataSourceError, match="rollout_batch_size"):
        ceil_to_batch_size(30, 0)


@pytest.mark.parametrize("shuffle", [True, False])
def test_one_epoch_sees_every_prompt_and_only_the_overhang_twice(make: Make, shuffle: bool) -> None:
    """30 prompts in batches of 16: 2 rollouts, all 30 seen, exactly 2 seen twice, the same in every run."""
    draws = []
    for _ in range(2):
        source = make(rollout_shuffle=shuffle)
        assert len(source) == 32
        assert len(source) // 16 == 2
        draws.append(_ids(source.get_samples(16)) + _ids(source.get_samples(16)))
    seen = Counter(draws[0])
    assert set(seen) == set(range(30))
    assert sorted(seen.values()) == [1] * 28 + [2] * 2
    assert draws[0] == draws[1]
    assert (draws[0] == [*range(30), 0, 1]) is not shuffle


def test_epochs_have_different_reproducible_orders(make: Make) -> None:
    """The second round is another permutation of the same prompts."""
    source = make(prompts=30, batch=10)
    first, second = (_ids(source.get_samples(30)) for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(30))
    assert first != second


@pytest.mark.parametrize("wanted", [1, 7, 8, 20])
def test_a_request_larger_than_the_data_is_met(make: Make, wanted: int) -> None:
    """Three prompts serve any request, round after round, each prompt equally often."""
    source = make(prompts=3, batch=1)
    first = source.get_samples(1)
    groups = source.get_samples(wanted)
    assert len(groups) == wanted
    assert _keys(groups) == list(range(1, wanted + 1))
    counts = Counter(_ids(first + groups))
    assert max(counts.values()) - min(counts[i] for i in range(3)) <= 1


def test_an_empty_file_gives_nothing(make: Make) -> None:
    """No rows: no groups, instead of an endless search."""
    source = make(rows=[{"input": "x"}], prompt_data=None)
    assert len(source) == 0
    path = Path(source.args.save).parent / "empty.jsonl"
    path.write_text("")
    source = make(rows=[{"input": "x"}])
    source.dataset.samples = source.dataset.origin_samples = []
    assert source.get_samples(3) == []


def test_the_contract_s_minimal_args_are_enough(make: Make) -> None:
    """Slime's plug-in test constructs the class with a handful of attributes and draws one group."""
    cls = type(make())
    args = SimpleNamespace(
        **dict(rollout_global_dataset=False, buffer_filter_path=None, n_samples_per_prompt=2),
        **dict(custom_rm_path=None, group_rm=False, rm_type=None, reward_key=None),
    )
    groups = cls(args).get_samples(1)
    assert [len(group) for group in groups] == [2]


def test_returned_groups_come_back_before_fresh_ones(make: Make) -> None:
    """What was handed back is drawn next, with its numbers."""
    source = make()
    groups = source.get_samples(4)
    source.add_samples(groups[1:3])
    assert source.get_buffer_length() == 2
    assert _keys(source.get_samples(3)) == [1, 2, 4]


def _resume(make: Make, rollout_id: int, **extra: Any) -> Any:
    source = make(**extra)
    source.load(rollout_id)
    source.track_deliveries()
    return source


def test_a_checkpoint_brings_back_what_is_in_flight_buffered_and_delivered_later(make: Make) -> None:
    """After a resume each unfinished prompt is drawn first, in the order of first draws, once."""
    source = make(batch=4)
    source.track_deliveries()
    groups = source.get_samples(12)
    source.mark_delivered([0, 2, 4, 6], 0)
    source.mark_given_up([1])
    source.mark_delivered([3, 5], 1)
    source.add_samples([groups[8]])
    source.save(0)
    wanted = [3, 5, 7, 8, 9, 10, 11]
    assert source.unsettled_groups(0) == wanted
    assert source.unsettled_groups() == [7, 8, 9, 10, 11]

    resumed = _resume(make, 0, batch=4)
    assert resumed.get_buffer_length() == len(wanted)
    assert resumed.unsettled_groups() == wanted
    restored = resumed.get_samples(3) + resumed.get_samples(4)
    assert _keys(restored) == wanted
    assert [[s.index for s in g] for g in restored] == [[s.index for s in groups[k]] for k in wanted]
    assert _ids(restored) == [groups[k][0].metadata["id"] for k in wanted]
    assert [g[0].prompt for g in restored] == [groups[k][0].prompt for k in wanted]
    assert _keys(resumed.get_samples(2)) == [12, 13]
    assert _ids(resumed.get_samples(18)) == _ids(source.get_samples(21)[3:])


def test_a_resume_from_a_resume_loses_nothing(make: Make) -> None:
    """Restored groups that were not drawn, or drawn and not delivered, are in the next checkpoint too."""
    source = make(batch=2)
    source.track_deliveries()
    source.get_samples(6)
    source.save(0)
    second = _resume(make, 0)
    second.get_samples(2)
    second.mark_delivered([0], 1)
    second.save(1)
    assert _keys(_resume(make, 1).get_samples(5)) == [1, 2, 3, 4, 5]


def test_restored_prompts_are_as_they_were_drawn(make: Make) -> None:
    """What a worker did to the drawn samples is not in the checkpoint."""
    source = make(batch=2)
    source.track_deliveries()
    for sample in source.get_samples(1)[0]:
        sample.prompt, sample.tokens, sample.metadata["polar"] = "changed", [1, 2], {"task_id": "t"}
    source.save(3)
    (group,) = _resume(make, 3).get_samples(1)
    assert [(s.tokens, s.metadata, s.status.value) for s in group] == [
        ([], {"id": s.metadata["id"]}, "pending") for s in group
    ]
    group[0].metadata["mine"] = 1
    assert "mine" not in group[1].metadata


def test_without_reports_it_behaves_like_slime_s_source(make: Make) -> None:
    """A rollout function that reports nothing: drawn counts as trained, the buffer is saved as well."""
    source = make(batch=4)
    groups = source.get_samples(8)
    groups[6][0].response = "partial"
    source.add_samples(groups[6:])
    source.save(1)
    resumed = make(batch=4)
    resumed.load(1)
    drawn = resumed.get_samples(3)
    assert _keys(drawn) == [6, 7, 8]
    assert [s.response for s in drawn[0]] == ["partial", ""]
    assert resumed.unsettled_groups() == []


def test_delivered_groups_are_forgotten_after_a_while(make: Make) -> None:
    """The account does not grow with the run, whether or not the trainer saves."""
    source = make(batch=2)
    source.track_deliveries()
    for rollout_id in range(50):
        source.mark_delivered(_keys(source.get_samples(2)), rollout_id)
    assert len(source._drawn) <= 2 * 5
    assert source.unsettled_groups() == []
    assert len(source.unsettled_groups(48)) == 2


def test_unknown_groups_are_ignored(make: Make) -> None:
    """Reports about groups drawn before tracking, or twice, change nothing."""
    source = make(batch=2)
    source.get_samples(1)
    source.mark_delivered([0, 77], 0)
    source.mark_given_up([77])
    source.get_samples(1)
    source.mark_given_up([1])
    source.mark_given_up([1])
    assert source.unsettled_groups() == []


def test_a_state_file_of_slime_s_own_source_loads(make: Make) -> None:
    """The five keys that Slime saves are enough."""
    torch = pytest.importorskip("torch")
    source = make()
    state = {
        "sample_offset": 5,
        "epoch_id": 1,
        "sample_group_index": 35,
        "sample_index": 70,
        "metadata": {"a": 1},
    }
    path = state_path(source.args.load, 4, suffix=".pt")
    path.parent.mkdir(parents=True)
    torch.save(state, path)
    source.load(4)
    (group,) = source.get_samples(1)
    assert (group[0].group_index, group[0].index, source.get_metadata()) == (35, 70, {"a": 1})
    plain = make()
    plain.get_samples(35)
    assert _ids(plain.get_samples(1)) == _ids([group])


def test_slime_s_own_source_loads_our_state(make: Make) -> None:
    """Going back to Slime's source keeps the position."""
    source = make()
    source.track_deliveries()
    source.get_samples(33)
    source.save(2)
    base = type(source).__mro__[2](source.args)
    base.load(2)
    assert (base.epoch_id, base.sample_offset, base.sample_group_index) == (1, 3, 33)


def test_the_state_is_weights_only_and_atomic(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save that fails half-way leaves the older file; nothing in the file needs unpickling of classes."""
    source = make()
    source.track_deliveries()
    source.get_samples(2)
    source.save(0)
    (path,) = Path(source.args.save).glob("rollout/*")
    before = path.read_bytes()
    state = read_state(path)
    assert [record["group_index"] for record in state["slime_bridge"]["groups"]] == [0, 1]

    def fail(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    source.get_samples(2)
    with pytest.raises(OSError, match="space"):
        source.save(0)
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_damaged_state_is_an_error_and_no_fresh_start(make: Make) -> None:
    """A cut file, another structure, a newer version, a record that fits nothing: named, not ignored."""
    source = make()
    path = state_path(source.args.load, 1, suffix=".json")
    path.parent.mkdir(parents=True)
    record = {"group_index": 0, "indices": [0], "row": 99, "samples": None}
    for content in ('{"sample_off', "[1]", '{"slime_bridge": {"version": 9}}'):
        path.write_text(content)
        with pytest.raises(DataSourceError, match="global_dataset_state_dict_1"):
            source.load(1)
    for broken in (
        record,
        {"indices": [0]},
        {**record, "row": None},
        {**record, "samples": [{"status": "odd"}]},
    ):
        path.write_text(json.dumps({"slime_bridge": {"version": 1, "groups": [broken]}}))
        with pytest.raises(DataSourceError, match="cannot be restored"):
            source.load(1)
    torch_path = state_path(source.args.load, 2, suffix=".pt")
    torch_path.write_bytes(pickle.dumps({"metadata": datetime.date(2026, 1, 1)}))
    with pytest.raises(DataSourceError, match=r"global_dataset_state_dict_2\.pt"):
        source.load(2)


def test_a_missing_state_is_a_fresh_start(make: Make) -> None:
    """Slime asks for the state of rollout -1 on a fresh start."""
    source = make()
    source.load(-1)
    assert _keys(source.get_samples(1)) == [0]
    nowhere = make(load=None, save=None)
    nowhere.load(0)
    nowhere.save(0)


def test_a_trainer_killed_between_model_and_data_goes_on_from_the_state_before(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Starting the epoch again would leave its last prompts untrained."""
    source = make(prompts=12, batch=2)
    source.track_deliveries()
    for rollout_id in range(4):
        source.mark_delivered(_keys(source.get_samples(2)), rollout_id)
        if rollout_id != 3:
            source.save(rollout_id)
    Path(source.args.load, "rollout", "global_dataset_state_dict_latest.json").write_text("not a state")
    resumed = make(prompts=12, batch=2)
    resumed.load(3)
    assert _keys(resumed.get_samples(3)) == [6, 7, 8]
    assert "global_dataset_state_dict_2" in caplog.text
    again = make(prompts=12, batch=2)
    again.load(-1)
    assert _keys(again.get_samples(1)) == [0]


def test_prompts_that_are_not_plain_are_kept_as_rows(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """A date in a prompt does not make the state unreadable: the row in the data stands for it."""
    source = make(prompts=5, batch=2)
    for sample in source.dataset.origin_samples:
        sample.metadata["when"] = datetime.date(2026, 1, sample.metadata["id"] + 1)
    source.track_deliveries()
    drawn = source.get_samples(7)
    source.save(0)
    resumed = make(prompts=5, batch=2)
    for sample in resumed.dataset.origin_samples:
        sample.metadata["when"] = "restored"
    resumed.load(0)
    restored = resumed.get_samples(7)
    assert _ids(restored) == _ids(drawn)
    assert {sample.metadata["when"] for group in restored for sample in group} == {"restored"}
    assert not caplog.records
    drawn[0][0].metadata["when"] = object()
    source.add_samples([drawn[0]])
    source.save(1)
    assert "cannot bring this prompt back" in caplog.text


@pytest.mark.parametrize("n", [1, 2, 5])
def test_another_number_of_samples_fits_restored_groups(make: Make, n: int) -> None:
    """A resume with another `n_samples_per_prompt` gets groups of the new size with unique numbers."""
    source = make(n=2)
    source.track_deliveries()
    source.get_samples(3)
    source.save(0)
    groups = _resume(make, 0, n=n).get_samples(6)
    indices = [sample.index for group in groups for sample in group]
    assert [len(group) for group in groups] == [n] * 6
    assert len(set(indices)) == len(indices)


def test_metadata_that_is_not_plain_is_refused_at_save(make: Make) -> None:
    """State that no safe loader could read again is an error when it is written."""
    source = make()
    source.update_metadata({"when": datetime.date(2026, 1, 1)})
    with pytest.raises(DataSourceError, match="metadata"):
        source.save(0)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_cut_of_the_run_loses_or_doubles_a_prompt(make: Make, data: st.DataObject) -> None:
    """Random prefetch, rejections, hand-backs, saves and kills: each drawn prompt has exactly one fate."""

    def start() -> Any:
        source = make(prompts=300, batch=4, n=1, rollout_shuffle=False)
        source.load(saved)
        source.track_deliveries()
        return source

    for file in Path(make().args.save).glob("rollout/*"):
        file.unlink()
    saved, rollout = -1, 0
    source, ahead = start(), []
    trained: list[int] = []
    gone: list[int] = []
    at_save: tuple[list[int], list[int]] = ([], [])
    for _ in range(data.draw(st.integers(5, 30))):
        ahead += source.get_samples(max(0, data.draw(st.integers(4, 9)) - len(ahead)))
        action = data.draw(st.sampled_from(["train", "train", "reject", "return", "kill"]))
        if action == "reject":
            group = ahead.pop(data.draw(st.integers(0, len(ahead) - 1)))
            source.mark_given_up(_keys([group]))
            gone += _ids([group])
        elif action == "return":
            source.add_samples([ahead.pop()])
        elif action == "kill":
            source, ahead, rollout = start(), [], saved + 1
            trained, gone = list(at_save[0]), list(at_save[1])
        else:
            batch, ahead = ahead[:4], ahead[4:]
            source.mark_delivered(_keys(batch), rollout)
            before = list(trained)
            trained += _ids(batch)
            save = data.draw(st.sampled_from(["no", "this", "previous"]))
            if save == "this" or (save == "previous" and rollout > max(saved, 0)):
                # `train_async.py` saves a rollout when the next one was handed over already.
                saved = rollout if save == "this" else rollout - 1
                at_save = (list(trained) if save == "this" else before, list(gone))
                source.save(saved)
            rollout += 1
    fates = trained + gone + source.unsettled_groups()
    assert sorted(fates) == list(range(source.sample_group_index))


def test_groups_round_trip_through_records(make: Make) -> None:
    """Equal samples are stored once, different ones each."""
    source = make()
    (group,) = source.get_samples(1)
    record = encode_group(group, row=None)
    assert len(record["samples"]) == 1
    group[1].response = "other"
    record = encode_group(group, row=None)
    assert len(record["samples"]) == 2
    again = decode_group(record, sample_class=type(group[0]), rows=None)
    assert [sample.to_dict() for sample in again] == [sample.to_dict() for sample in group]


def test_writing_a_state_keeps_strange_text(tmp_path: Path) -> None:
    """Lone surrogates, NaN and long numbers survive the file."""
    for suffix in (".json", ".pt"):
        path = tmp_path / f"state{suffix}"
        write_state(
            path, {"text": "\ud800 é", "number": 2**70, "nothing": None, "nested": {"list": [1.5, [True]]}}
        )
        assert read_state(path) == {
            "text": "\ud800 é",
            "number": 2**70,
            "nothing": None,
            "nested": {"list": [1.5, [True]]},
        }


def test_the_class_has_its_dotted_path_and_a_cheap_import() -> None:
    """Slime finds the class by name, always the same one; importing the module loads no Slime or torch."""
    first, second = (data_source.CeilEpochRolloutDataSourceWithBuffer for _ in range(2))
    assert first is second
    assert isinstance(first, type)
    assert pickle.loads(pickle.dumps(first)) is first
    assert first.__qualname__ == "CeilEpochRolloutDataSourceWithBuffer"
    with pytest.raises(AttributeError, match="Nothing"):
        _ = data_source.Nothing
    code = "import sys, slime_bridge.data_source; assert not {'slime', 'torch', 'ray'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).resolve().parents[2])
