"""Tokens of traces: read where they lie, joined from every file, windowed, as arrays and as a frame."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import analysis
from analysis.errors import LoadError
from analysis.lab.dumps import read_dump
from analysis.lab.run_folder import RunFolder
from analysis.sources.base import ReadOptions
from analysis.token_files import Place, TokenFiles
from analysis.tokens import TokenArrays
from tests.analysis.test_context_parallel import slime_slice
from tests.analysis.test_loading import load, session, write_session

ARRAYS = ("ids", "position", "mask", "trainable", "logprob", "train_logprob", "advantage", "turn")


def equal(one: TokenArrays, other: TokenArrays) -> bool:
    for name in ("offsets", *ARRAYS):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    return True


@pytest.fixture
def run(embedded: RunFolder) -> analysis.Run:
    return load(embedded.root)


def test_tokens_are_those_of_the_dumps(run: analysis.Run, embedded: RunFolder) -> None:
    """Ids, masks, logprobs, advantages and the trainer's logprobs, each at its place, for every sample."""
    traces = run.traces()
    chosen = traces[(traces["rollout_id"] == 1) & traces["trained"].fillna(False)]
    chosen = chosen[~chosen["placeholder"].fillna(True)]
    samples = read_dump(embedded.rollout_data / "1.pt")["samples"]
    data = read_dump(embedded.train_data / "1_0.pt")["rollout_data"]
    assert len(chosen) > 10
    for _, row in chosen.iterrows():
        tokens = run.token_arrays(row["session_id"], trace_index=row["trace_index"])
        sample, item = samples[row["sample_position"]], int(row["train_position"])
        cut = len(sample["tokens"]) - sample["response_length"]
        assert tokens.ids.tolist() == sample["tokens"]
        assert tokens.mask[cut:].tolist() == sample["loss_mask"] == tokens.trainable[cut:].tolist()
        assert (tokens.mask[:cut] == 0).all()
        np.testing.assert_allclose(tokens.logprob[cut:], sample["rollout_log_probs"], rtol=1e-6)
        np.testing.assert_allclose(tokens.train_logprob[cut:], data["log_probs"][item])
        np.testing.assert_allclose(tokens.advantage[cut:], data["advantages"][item])
        for values in (tokens.logprob, tokens.train_logprob, tokens.advantage):
            assert np.isnan(values[:cut]).all()


def test_all_tokens_at_once_have_offsets(run: analysis.Run) -> None:
    """Without arguments: every trace of the view, one after the other; lengths agree with the trace table."""
    tokens = run.token_arrays()
    assert tokens.problems == ()
    assert tokens.offsets[0] == 0
    assert tokens.offsets[-1] == len(tokens) == len(tokens.mask)
    lengths = tokens.traces["prompt_tokens"] + tokens.traces["response_tokens"]
    assert np.diff(tokens.offsets).tolist() == lengths.tolist()
    known = run.traces()
    known = known[~known["placeholder"].fillna(False)]
    assert len(tokens.traces) == len(known)
    assert tokens.traces["session_id"].tolist() == known["session_id"].tolist()
    accepted = run.filter(accepted=True)
    assert len(accepted.token_arrays()) < len(tokens)


@pytest.mark.parametrize(
    "window", [(0, 5), (3, 14), (-4, None), slice(2, -2), (10_000, 10_010), (5, 5), (None, None)]
)
def test_a_window_is_a_slice_of_the_whole(run: analysis.Run, window: Any) -> None:
    """From the server's file, where only the window is decoded, and beyond the prompt's end."""
    names = run.filter(accepted=True, usable=True).sessions()["session_id"].tolist()[:4]
    whole, part = run.token_arrays(names), run.token_arrays(names, window=window)
    place = window if isinstance(window, slice) else slice(*window)
    for trace in range(len(whole.table)):
        one = slice(whole.offsets[trace], whole.offsets[trace + 1])
        other = slice(part.offsets[trace], part.offsets[trace + 1])
        for name in ARRAYS:
            np.testing.assert_array_equal(getattr(whole, name)[one][place], getattr(part, name)[other])
    assert part.traces["prompt_tokens"].tolist() == whole.traces["prompt_tokens"].tolist()


def test_a_window_takes_every_token(run: analysis.Run) -> None:
    """A step would tear tokens from their turns."""
    with pytest.raises(ValueError, match="every token"):
        run.token_arrays(window=slice(0, 10, 2))


def test_turns_count_sampled_stretches(tmp_path: Path) -> None:
    """What comes back belongs to the turn before it; what leads to none; without a mask nobody knows."""
    path = write_session(tmp_path, "s1", tokens=8)
    content = json.loads(path.read_bytes())
    trace = content["trajectory"]["traces"][0]
    trace["loss_mask"] = [0, 1, 1, 0, 0, 1, 0, 1]
    bare = {**trace, "loss_mask": [], "response_logprobs": None}
    content["trajectory"]["traces"].append(bare)
    path.write_text(json.dumps(content))
    tokens = load(tmp_path).token_arrays("s1")
    assert tokens.turn[:10].tolist() == [-1, -1, -1, 0, 0, 0, 0, 1, 1, 2]
    assert tokens.turn[10:].tolist() == [-1] * 10
    assert tokens.mask[10:].tolist() == [0, 0] + [-1] * 8
    assert np.isnan(tokens.logprob[10:]).all()
    assert tokens.trainable[2:10].tolist() == [-1] * 8


def test_the_frame_has_nullable_columns_and_no_array_cells(run: analysis.Run) -> None:
    """One row per token with the ids of its trace; missing is NA."""
    name = run.filter(accepted=True, usable=True).sessions()["session_id"].iloc[0]
    frame = run.tokens(name)
    arrays = run.token_arrays(name)
    assert len(frame) == len(arrays)
    dtypes = {name: str(dtype) for name, dtype in frame.dtypes.items()}
    assert dtypes["token"] == dtypes["position"] == dtypes["turn"] == "Int32"
    assert dtypes["mask"] == dtypes["trainable"] == "Int8"
    assert dtypes["logprob"] == dtypes["advantage"] == "Float32"
    assert dtypes["session_id"] == "string"
    prompt = frame["position"] < arrays.traces["prompt_tokens"].iloc[0]
    assert frame.loc[prompt & (frame["trace_index"] == 0), "logprob"].isna().all()
    assert frame.loc[prompt & (frame["trace_index"] == 0), "turn"].isna().all()
    assert "text" not in frame
    assert frame["session_id"].unique().tolist() == [name]
    assert run.tokens(name, window=(3, 3)).dtypes.equals(frame.dtypes)


class Letters:
    """A tokenizer of single letters."""

    def decode(self, ids: Any, **options: Any) -> str:
        return "".join(chr(97 + token % 26) for token in ids)


def test_text_is_added_where_a_tokenizer_is_known(embedded: RunFolder) -> None:
    """By option, or the folder beside the dumps; asking for it without one is an error."""
    run = load(embedded.root, tokenizer=Letters())
    name = run.sessions()["session_id"].iloc[0]
    frame = run.tokens(name, window=(0, 4))
    assert frame["text"].tolist() == [chr(97 + token % 26) for token in frame["token"]]
    assert "text" not in run.tokens(name, window=(0, 4), text=False)
    with pytest.raises(LoadError, match="tokenizer="):
        load(embedded.root).tokens(name, text=True)


def test_the_tokenizer_of_the_run_is_found(embedded: RunFolder) -> None:
    """Slime saves it under ``tokenizer`` in the folder of dumps."""
    pytest.importorskip("tokenizers")
    from analysis.lab.tokenizer import build_tokenizer, save_tokenizer

    save_tokenizer(
        build_tokenizer(["a few words"] * 3, vocab_size=300, max_length=50), embedded.root / "tokenizer"
    )
    run = load(embedded.root)
    assert run.tokens(run.sessions()["session_id"].iloc[0], window=(0, 3))["text"].notna().all()


def test_a_session_that_is_not_there_is_said(run: analysis.Run) -> None:
    """A wrong id is no empty frame; neither is one outside of a view."""
    with pytest.raises(KeyError, match="sk-nobody"):
        run.tokens("sk-nobody")
    rejected = run.filter(accepted=False).sessions()["session_id"].iloc[0]
    with pytest.raises(KeyError, match=rejected):
        run.filter(accepted=True).tokens(rejected)


def test_dumps_alone_are_enough(embedded: RunFolder) -> None:
    """Without the server's files the same tokens come from the dumps; rejected ones from rejected.jsonl."""
    import shutil

    whole = load(embedded.root)
    sessions = whole.traces().dropna(subset="session_id").query("not placeholder.fillna(False)")
    wanted = sorted(set(sessions["session_id"]))
    expected = whole.token_arrays(wanted)
    shutil.rmtree(embedded.polar_results)
    assert equal(load(embedded.root).token_arrays(wanted), expected)


def test_a_lone_train_dump_still_has_tokens(embedded: RunFolder, tmp_path: Path) -> None:
    """Nothing else is left: ids, mask, logprobs of the sampler and of the trainer, advantages."""
    run = load(embedded.train_data / "0_0.pt")
    tokens = run.token_arrays()
    data = read_dump(embedded.train_data / "0_0.pt")["rollout_data"]
    assert tokens.ids.tolist() == torch.cat(data["tokens"]).tolist()
    response = tokens.position >= np.repeat(tokens.traces["prompt_tokens"], np.diff(tokens.offsets))
    np.testing.assert_array_equal(tokens.advantage[response], torch.cat(data["advantages"]))
    np.testing.assert_array_equal(tokens.logprob[response], torch.cat(data["rollout_log_probs"]))
    assert tokens.trainable[response].tolist() == torch.cat(data["loss_masks"]).tolist()


def test_context_parallel_slices_are_put_together(embedded: RunFolder) -> None:
    """Two context ranks, two tensor ranks, samples spread over two data ranks: the same per-token values."""
    whole = load(embedded.root)
    name = whole.filter(rollout_id=0, usable=True, accepted=True).sessions()["session_id"].tolist()
    expected = whole.token_arrays(name)
    path = embedded.train_data / "0_0.pt"
    content = torch.load(path, weights_only=True)
    data = content["rollout_data"]
    count = len(data["tokens"])
    path.unlink()
    for rank in range(8):
        tensor, context, part = rank % 2, rank // 2 % 2, rank // 4
        assert tensor in (0, 1)
        mine = [item for item in range(count) if item % 2 == part]
        shard: dict[str, Any] = {
            key: [values[item] for item in mine]
            if isinstance(values, list) and len(values) == count
            else values
            for key, values in data.items()
        }
        for key in ("rollout_log_probs", "log_probs", "advantages", "returns"):
            shard[key] = [
                torch.from_numpy(slime_slice(values.numpy(), int(total), context, 2))
                for values, total in zip(shard[key], shard["total_lengths"], strict=True)
            ]
        torch.save(
            {"rollout_id": 0, "rank": rank, "rollout_data": shard}, embedded.train_data / f"0_{rank}.pt"
        )
    run = load(embedded.root)
    assert run.problems.empty
    assert equal(run.token_arrays(name), expected)
    coverage = run.coverage.set_index("rollout_id")
    assert coverage.loc[0, "fraction"] == 1.0


def test_a_clipped_sample_has_nothing_to_learn_behind_its_end(tmp_path: Path) -> None:
    """The dump holds less than the server sent: ids from the server, trainable only where the dump says."""
    write_session(tmp_path, "s1", tokens=6)
    folder = tmp_path / "rollout_data"
    folder.mkdir()
    sample = {
        "index": 1, "group_index": 0, "group_id": 1, "tokens": [1, 2, 0, 1, 2, 3], "response_length": 4,
        "reward": 1.0,
        "status": "truncated", "loss_mask": [1, 1, 0, 1], "rollout_log_probs": [-0.5] * 4, "session_id": "s1",
        "metadata": {"polar": {"session_id": "s1", "trace_index": 0, "task_id": "t"}},
    }  # fmt: skip
    torch.save({"rollout_id": 0, "samples": [sample]}, folder / "0.pt")
    tokens = load(tmp_path).token_arrays("s1")
    assert tokens.ids.tolist() == [1, 2, 0, 1, 2, 3, 4, 5]
    assert tokens.trainable.tolist() == [0, 0, 1, 1, 0, 1, 0, 0]
    assert tokens.mask.tolist() == [0, 0, 1, 1, 1, 1, 1, 1]


def test_removed_samples_teach_nothing(tmp_path: Path) -> None:
    """`remove_sample` trains like a mask of zeros; no mask at all trains everything."""
    folder = tmp_path / "rollout_data"
    folder.mkdir()
    base = {
        "group_index": 0, "tokens": [1, 2, 3], "response_length": 2, "reward": 1.0, "status": "completed",
        "rollout_log_probs": [-0.5] * 2, "metadata": {},
    }  # fmt: skip
    samples = [
        {**base, "index": 1, "loss_mask": [1, 1], "remove_sample": True},
        {**base, "index": 2, "loss_mask": None, "remove_sample": False},
    ]
    torch.save({"rollout_id": 0, "samples": samples}, folder / "0.pt")
    tokens = load(tmp_path).token_arrays()
    assert tokens.trainable.tolist() == [0, 0, 0, 0, 1, 1]
    assert tokens.mask.tolist() == [0, 1, 1, 0, -1, -1]


@pytest.mark.parametrize(
    "made", [list, tuple, np.array, torch.tensor], ids=["list", "tuple", "array", "tensor"]
)
def test_samples_hold_lists_arrays_or_tensors(tmp_path: Path, made: Any) -> None:
    """A rollout function may leave arrays or tensors in a sample; one of them may be a single 0, or empty."""
    folder = tmp_path / "rollout_data"
    folder.mkdir()
    base = {"group_index": 0, "reward": 1.0, "status": "completed", "metadata": {}, "remove_sample": False}
    samples = [
        {**base, "index": 1, "tokens": made([1, 2, 3]), "response_length": 2, "loss_mask": made([1, 0]),
         "rollout_log_probs": made([-0.5, 0.0])},
        {**base, "index": 2, "tokens": made([0]), "response_length": 1, "loss_mask": made([1]),
         "rollout_log_probs": made([-0.25])},
        {**base, "index": 3, "tokens": made([]), "response_length": 0, "loss_mask": made([]),
         "rollout_log_probs": made([])},
        {**base, "index": 4, "tokens": None, "response_length": 0, "loss_mask": None},
        {**base, "index": 5, "tokens": made([1, 2]), "response_length": 3, "loss_mask": made([1, 1, 1])},
    ]  # fmt: skip
    torch.save({"rollout_id": 0, "samples": samples}, folder / "0.pt")
    run = load(tmp_path)
    assert run.traces()["response_tokens"].tolist() == [2, 1, pd.NA, pd.NA, pd.NA]
    tokens = run.token_arrays()
    assert tokens.problems == ()
    assert tokens.offsets.tolist() == [0, 3, 4]
    assert tokens.ids.tolist() == [1, 2, 3, 0]
    assert tokens.trainable.tolist() == [0, 1, 0, 1]
    np.testing.assert_array_equal(tokens.logprob, np.float32([np.nan, -0.5, 0.0, -0.25]))
    files, place = TokenFiles(ReadOptions()), str(folder / "0.pt")
    assert len(files.read(Place(place, "rollout_dump", 2, None)).response) == 0
    with pytest.raises(LoadError, match="a response of 3 tokens in a sample of 2"):
        files.read(Place(place, "rollout_dump", 4, None))


def test_a_file_that_changed_is_no_wrong_answer(tmp_path: Path) -> None:
    """Bytes that moved are noticed; the remedy is a refresh; the other files still give their tokens."""
    path = write_session(tmp_path, "s1")
    write_session(tmp_path, "s2")
    run = load(tmp_path)
    path.write_bytes(b"  " + session("s1"))
    tokens = run.token_arrays()
    assert tokens.traces["session_id"].tolist() == ["s2"]
    assert "refresh()" in tokens.problems[0].why
    path.unlink()
    assert "s1" not in run.token_arrays().traces["session_id"].tolist()
    write_session(tmp_path, "s1", tokens=4)
    run.refresh()
    assert len(run.tokens("s1")) == 6


def test_strange_numbers_in_arrays(tmp_path: Path) -> None:
    """Null and absent logprobs are missing, huge ids are a listed problem, never a crash."""
    path = write_session(tmp_path, "s1", tokens=3)
    content = json.loads(path.read_bytes())
    trace = content["trajectory"]["traces"][0]
    trace["response_logprobs"] = [-0.5, None, -1e300]
    content["trajectory"]["traces"].append({**trace, "response_ids": [1, 2, 2**70]})
    path.write_text(json.dumps(content))
    tokens = load(tmp_path).token_arrays("s1")
    assert np.isnan(tokens.logprob[3])
    assert tokens.logprob[4] == -np.inf
    assert len(tokens.traces) == 1
    assert len(tokens.problems) == 1


def test_only_the_last_files_are_kept_decoded(embedded: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second look at a dump decodes nothing; memory is bounded; a changed file is decoded anew."""
    from analysis import token_files

    calls: list[str] = []
    real = token_files.load_pt

    def spy(path: str, **options: Any) -> Any:
        calls.append(Path(path).name)
        return real(path, **options)

    monkeypatch.setattr(token_files, "load_pt", spy)
    files = TokenFiles(ReadOptions())
    places = [Place(str(embedded.rollout_data / f"{n}.pt"), "rollout_dump", 0, None) for n in range(3)]
    for _ in range(2):
        for place in places:
            files.read(place)
    assert calls == ["0.pt", "1.pt", "2.pt"]
    monkeypatch.setattr(token_files, "KEPT_BYTES", 1)
    files = TokenFiles(ReadOptions())
    for place in places:
        files.read(place)
    files.read(places[2])
    assert calls == ["0.pt", "1.pt", "2.pt", "0.pt", "1.pt", "2.pt"]
    with pytest.raises(LoadError, match="no trace 999"):
        files.read(Place(places[0].path, "rollout_dump", 999, None))
    with pytest.raises(LoadError, match="no token arrays"):
        files.read(Place(places[0].path, "journal", 0, None))


def test_an_empty_selection_is_an_empty_frame(run: analysis.Run) -> None:
    """Typed, without rows."""
    none = run.filter(rollout_id=999)
    assert len(none.token_arrays()) == 0
    frame = none.tokens()
    assert len(frame) == 0
    assert isinstance(frame["token"].dtype, pd.Int32Dtype)
