"""Whatever lies in a folder: what can be read is in the frames, what cannot is listed, no other suffers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import analysis
from analysis.errors import LoadError, StrictLoadError
from analysis.lab.run_folder import RunFolder

ROOT = Path(__file__).resolve().parents[2]
CAPTURES = ROOT / "tests" / "data" / "polar"


def session(
    name: str, *, task: str = "t", reward: float | None = 1.0, traces: int = 1, tokens: int = 3
) -> bytes:
    one = {
        "prompt_ids": [1, 2],
        "response_ids": list(range(tokens)),
        "loss_mask": [1] * tokens,
        "response_logprobs": [-0.5] * tokens,
        "reward": reward,
        "finish_reason": "stop",
        "metadata": {},
    }
    body = {"metadata": {}, "traces": [one] * traces}
    return json.dumps(
        {
            "session_id": name,
            "task_id": task,
            "status": "COMPLETED",
            "trajectory": body,
            "timing": {},
            "metadata": {},
        }
    ).encode()


def write_session(folder: Path, name: str, **options: Any) -> Path:
    path = folder / f"task_{options.get('task', 't')}" / f"ses_{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(session(name, **options))
    return path


def load(path: Any, **options: Any) -> analysis.Run:
    return analysis.load(path, **{"index": False, **options})


def frames(run: analysis.Run) -> list[pd.DataFrame]:
    return [
        frame()
        for frame in (
            run.rollouts,
            run.groups,
            run.sessions,
            run.traces,
            run.events,
            run.completions,
            run.metrics,
        )
    ]


def same(one: analysis.Run, other: analysis.Run) -> bool:
    for left, right in zip(frames(one), frames(other), strict=True):
        pd.testing.assert_frame_equal(left, right)
    return True


def test_importing_the_package_is_cheap() -> None:
    """Neither pandas nor PyArrow until something is loaded; and `analysis.load` is a function ever after."""
    code = (
        "import sys, analysis\n"
        "assert not {'pandas', 'pyarrow', 'numpy'} & set(sys.modules), 'heavy'\n"
        "import analysis.loading\n"
        "assert callable(analysis.load) and analysis.Run.__name__ == 'Run'\n"
        "from analysis import load\n"
        "try: analysis.nothing\n"
        "except AttributeError as error: assert 'nothing' in str(error)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr


def test_the_captures_load() -> None:
    """Real results, a task record with one of them again, a captured call, and somebody's notes."""
    run = load(CAPTURES)
    sessions = run.sessions().set_index("session_id")
    long = sessions.loc[sessions["response_tokens"] == 15_803].iloc[0]
    assert long["trainable_tokens"] == 8_506
    assert pd.isna(long["reward"])
    trace = run.traces().query("response_tokens == 15803").iloc[0]
    assert round(trace["logprob_zero_share"] * 8_506) == 2_119
    traces = run.traces()
    lost = traces[traces["session_id"] == sessions.index[sessions["traces"] == 10][0]]
    assert len(lost) == 10
    assert lost["prompt_tokens"].isna().all()
    assert run.problems.empty
    assert run.skipped["path"].str.endswith("not_a_result.grades.json").any()
    assert sessions.index.is_unique


def test_a_messy_folder_gives_what_is_whole_and_lists_the_rest(tmp_path: Path) -> None:
    """Good results beside a cut one, an empty one, foreign JSON, notes and half-written files."""
    for number in range(3):
        write_session(tmp_path, f"s{number}")
    cut = write_session(tmp_path, "cut")
    cut.write_bytes(cut.read_bytes()[:100])
    write_session(tmp_path, "empty").write_bytes(b"")
    (tmp_path / "summary.csv").write_text("a,b\n")
    (tmp_path / "grades.json").write_text('{"grades": {"a": 1}}')
    (tmp_path / "task_t" / ".ses_x.json.tmp").write_bytes(b"{")
    run = load(tmp_path)
    assert run.sessions()["session_id"].tolist() == ["s0", "s1", "s2"]
    assert len(run.traces()) == 3
    problems = run.problems.set_index(run.problems["path"].map(os.path.basename))
    assert set(problems.index) == {"ses_cut.json", "ses_empty.json"}
    assert (problems["fix"] != "").all()
    skipped = set(run.skipped["path"].map(os.path.basename))
    assert {"summary.csv", "grades.json", ".ses_x.json.tmp"} <= skipped
    assert run.skipped["reason"].str.len().min() > 3


def test_strict_raises_at_the_first_problem_and_names_the_file(tmp_path: Path) -> None:
    """The same folder, strictly: an error with path, cause and remedy; a clean folder loads."""
    write_session(tmp_path, "s0")
    assert len(load(tmp_path, strict=True).sessions()) == 1
    write_session(tmp_path, "torn").write_bytes(b'{"session_id": "to')
    with pytest.raises(StrictLoadError, match=r"ses_torn\.json.*strict=False"):
        load(tmp_path, strict=True)


def test_a_torn_file_is_picked_up_when_it_is_whole(tmp_path: Path) -> None:
    """Refresh reads what is new and what was completed, forgets what is gone, and keeps the rest."""
    torn = write_session(tmp_path, "s1")
    whole = torn.read_bytes()
    torn.write_bytes(whole[:50])
    gone = write_session(tmp_path, "s2")
    run = load(tmp_path)
    assert run.sessions()["session_id"].tolist() == ["s2"]
    assert len(run.problems) == 1
    torn.write_bytes(whole)
    write_session(tmp_path, "s3")
    gone.unlink()
    assert run.refresh() is run
    assert run.sessions()["session_id"].tolist() == ["s1", "s3"]
    assert run.problems.empty
    assert same(run, load(tmp_path))


def test_refresh_without_changes_changes_nothing(tmp_path: Path) -> None:
    """Nothing is read, and frames stay."""
    write_session(tmp_path, "s1")
    run = load(tmp_path)
    generation = run.store.generation
    before = run.sessions()
    assert run.store.refresh() is False
    assert run.store.generation == generation
    pd.testing.assert_frame_equal(run.sessions(), before)


def test_a_growing_run_equals_one_that_is_loaded_at_its_end(embedded: RunFolder, tmp_path: Path) -> None:
    """Journal and metrics read on from where they were, files in any order of arrival: the same frames."""
    grown = RunFolder(tmp_path / "grown" / "lab")
    grown.bridge.mkdir(parents=True)
    journal = (embedded.bridge / "journal.jsonl").read_bytes()
    lines = journal.splitlines(keepends=True)
    steps = [b"".join(lines[:5]), b"".join(lines[:17]) + lines[17][:20], b"".join(lines[:40]), journal]
    target = grown.bridge / "journal.jsonl"
    target.write_bytes(steps[0])
    run = load(grown.root)
    parts = ["train_data", "metrics.jsonl", "polar_results"]
    for step, part in zip(steps[1:], parts, strict=True):
        target.write_bytes(step)
        copy = shutil.copytree if (embedded.root / part).is_dir() else shutil.copy
        copy(embedded.root / part, grown.root / part)
        run.refresh()
    for part in ("rollout_data", "prompts"):
        shutil.copytree(embedded.root / part, grown.root / part)
    shutil.copy(embedded.bridge / "rejected.jsonl", grown.bridge / "rejected.jsonl")
    run.refresh()
    assert run.problems.empty
    assert len(run.events()) == len(lines)
    assert same(run, load(grown.root))


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_an_interrupted_refresh_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """Ctrl-C in the middle of reading: the frames are the old ones, and the next one works."""
    write_session(tmp_path, "s1")
    run = load(tmp_path, engine=engine, workers=2)
    before = run.sessions()
    for number in range(2, 8):
        write_session(tmp_path, f"s{number}")
    with monkeypatch.context() as patch:
        patch.setattr("analysis.parallel.CHUNK_FILES", 1)
        patch.setattr("analysis.store._retried", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.refresh()
    pd.testing.assert_frame_equal(run.sessions(), before)
    assert run.refresh().sessions()["session_id"].tolist() == [f"s{number}" for number in range(1, 8)]


def interrupted(part: object) -> None:
    raise KeyboardInterrupt


def test_only_the_tail_of_a_journal_is_read_again(
    embedded: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read of an append-only file is not read twice."""
    path = embedded.bridge / "journal.jsonl"
    journal = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(journal[:30]))
    run = load(embedded.root)
    from analysis import store

    seen: list[tuple[str, int]] = []
    real = store.chunked

    def spy(items: Any, size: Any, **options: Any) -> Any:
        seen.extend((os.path.basename(file.path), size(file)) for file in items)
        return real(items, size, **options)

    monkeypatch.setattr(store, "chunked", spy)
    path.write_bytes(b"".join(journal))
    run.refresh()
    assert seen == [("journal.jsonl", len(b"".join(journal[30:])))]
    assert len(run.events()) == len(journal)


def test_a_journal_that_was_replaced_is_read_anew(embedded: RunFolder) -> None:
    """A longer file with another beginning is another file, not a continuation."""
    path = embedded.bridge / "journal.jsonl"
    journal = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(journal[:20]))
    run = load(embedded.root)
    other = journal[0].replace(b'"seq":0', b'"seq":7')
    path.write_bytes(other + b"".join(journal[1:]))
    run.refresh()
    assert len(run.events()) == len(journal)
    assert run.events()["seq"].iloc[0] == 7


def test_a_torn_last_line_is_told_until_it_is_whole(tmp_path: Path) -> None:
    """A metrics file in the middle of a write: the line is missing, then there, and the note is gone."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"rollout_id": 0, "loss": 1.0}\n{"rollout_id": 1, "lo')
    run = load(tmp_path)
    assert run.metrics()["value"].tolist() == [1.0]
    path.write_text('{"rollout_id": 0, "loss": 1.0}\n{"rollout_id": 1, "loss": 2.0}\n')
    run.refresh()
    assert run.metrics().loc[lambda frame: frame["name"] == "loss", "value"].tolist() == [1.0, 2.0]
    assert run.problems.empty


def test_sessions_without_traces_keep_their_row(tmp_path: Path) -> None:
    """Zero traces everywhere, then mixed: the session table keeps them, the trace table keeps its columns."""
    write_session(tmp_path, "none", traces=0)
    run = load(tmp_path)
    assert len(run.sessions()) == 1
    assert run.traces().shape[0] == 0
    columns = list(run.traces().columns)
    write_session(tmp_path, "some", traces=2)
    run.refresh()
    assert len(run.sessions()) == 2
    assert list(run.traces().columns) == columns
    assert run.sessions()["traces"].tolist() == [0, 2]


def test_an_empty_folder_gives_typed_empty_frames(tmp_path: Path) -> None:
    """Every frame has its columns and dtypes, and the summary says so."""
    write_session(tmp_path / "full", "s1")
    (tmp_path / "empty").mkdir()
    empty, full = load(tmp_path / "empty"), load(tmp_path / "full")
    for left, right in zip(frames(empty), frames(full), strict=True):
        assert left.dtypes.equals(right.dtypes)
        assert len(left) == 0
    assert "Run without data" in repr(empty)
    assert empty.coverage.empty
    assert len(empty.token_arrays()) == 0


def test_ids_sort_as_numbers(embedded: RunFolder) -> None:
    """Rollout 10 comes after rollout 2."""
    for old, new in ((0, 10), (1, 100)):
        (embedded.rollout_data / f"{old}.pt").rename(embedded.rollout_data / f"{new}.pt")
    rows = [{"rollout_id": number, "kind": "rollout", "loss": 1.0} for number in (20, 3, 1000)]
    embedded.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = load(embedded.root)
    ids = run.rollouts().query("not evaluation")["rollout_id"].tolist()
    assert ids == sorted(ids)
    assert {2, 3, 20, 1000} <= set(ids)


def test_single_files_and_several_paths(embedded: RunFolder) -> None:
    """A file, some files, a server's folder beside a trainer's: one run; two whole runs stay two."""
    files = sorted(embedded.polar_results.rglob("ses_*.json"))
    assert len(load(files[0]).sessions()) == 1
    assert len(load(files[:5]).sessions()) == 5
    elsewhere = embedded.root.parent / "elsewhere"
    shutil.move(embedded.polar_results, elsewhere)
    apart = load([embedded.root, elsewhere])
    assert apart.names == ["lab"]
    assert apart.sessions()["sources"].str.contains("polar").all()
    twin = shutil.copytree(embedded.root, embedded.root.parent / "twin")
    both = load([embedded.root, twin])
    assert both.names == ["lab", "twin"]
    assert both.rollouts().groupby("run").size().tolist() == [4, 4]
    named = load({"old": embedded.root, "new": [twin, elsewhere]})
    assert named.names == ["new", "old"]


def test_a_folder_of_runs_is_several_runs(embedded: RunFolder) -> None:
    """Rollout 0 of one run is not rollout 0 of another, though both lie under the named folder."""
    shutil.copytree(embedded.root, embedded.root.parent / "other")
    run = load(embedded.root.parent)
    assert run.names == ["lab", "other"]
    single = load(embedded.root)
    assert len(run.groups()) == 2 * len(single.groups())
    pd.testing.assert_frame_equal(
        run.filter(run="lab").sessions().drop(columns="path"), single.sessions().drop(columns="path")
    )


def test_what_does_not_exist_is_said(tmp_path: Path) -> None:
    """A wrong path is no empty run."""
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load(tmp_path / "nowhere")
    with pytest.raises(LoadError, match="nothing to load"):
        load([])


def test_a_dump_that_needs_trust_is_listed_with_the_option(tmp_path: Path) -> None:
    """Never unpickled blindly: the problem names `trusted=True`, and the option loads it."""
    import torch

    from analysis.lab.polar_server.settings import NodeSettings

    folder = tmp_path / "rollout_data"
    folder.mkdir()
    sample = {
        "index": 1, "group_index": 0, "tokens": [1, 2, 3], "response_length": 1, "reward": 1.0,
        "status": "completed", "loss_mask": [1], "rollout_log_probs": [-0.1],
        "metadata": {"node": NodeSettings()},
    }  # fmt: skip
    torch.save({"rollout_id": 0, "samples": [sample]}, folder / "0.pt")
    run = load(tmp_path)
    assert run.sessions().empty
    assert run.problems["fix"].str.contains("trusted=True").all()
    assert len(load(tmp_path, trusted=True).traces()) == 1


def test_engines_give_the_same_frames(embedded: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Serial and in processes, bit for bit, tokens included."""
    monkeypatch.setattr("analysis.parallel.CHUNK_FILES", 4)
    serial, processes = load(embedded.root), load(embedded.root, engine="processes", workers=2)
    assert same(serial, processes)
    one, other = serial.token_arrays(), processes.token_arrays()
    assert one.ids.tobytes() == other.ids.tobytes()
    assert one.advantage.tobytes() == other.advantage.tobytes()


def test_a_session_that_is_seen_twice_is_one_row(tmp_path: Path) -> None:
    """The same result in a task record and in its own file; a changed copy is flagged."""
    path = write_session(tmp_path, "s1")
    stored = json.loads(path.read_bytes())
    stored["trajectory"]["status"] = "COMPLETED"
    record = {
        "task_id": "t",
        "status": "completed",
        "total_sessions": 1,
        "completed_sessions": 1,
        "results": [stored],
    }
    (tmp_path / "task_status.json").write_text(json.dumps(record))
    run = load(tmp_path)
    assert len(run.sessions()) == 1
    assert run.problems.empty
    assert run.skipped["reason"].str.contains("again").any()
    (tmp_path / "copy").mkdir()
    shutil.copy(path, tmp_path / "copy" / "ses_s1.json")
    (tmp_path / "copy" / "ses_s1.json").write_bytes(session("s1", reward=0.25))
    run.refresh()
    assert len(run.sessions()) == 1
    assert run.problems["what"].str.contains("they differ in reward").any()
