"""Finding the files of a run: every format told apart, everything else listed with its reason."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from analysis.discovery import Discovery, discover, natural_key
from analysis.errors import LoadError
from analysis.sources.base import SourceFile, SourceKind
from analysis.sources.registry import read_files
from tests.analysis import pickle_corpus as corpus
from tests.analysis.sources.source_files import CAPTURES, rows, sample, session, write_json

MESSY = CAPTURES.parent / "messy"
ROLLOUT = corpus.whole(b"}(" + corpus.text("rollout_id") + b"K\x01" + corpus.text("samples") + b"]u")
TRAIN = corpus.whole(b"}(" + corpus.text("rollout_id") + b"K\x01" + corpus.text("rollout_data") + b"}u")


def touch(path: Path, content: bytes | str = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def names(found: Discovery, root: Path) -> dict[str, str]:
    return {os.path.relpath(file.path, root): file.kind.value for file in found.files}


def reasons(found: Discovery, root: Path) -> dict[str, str]:
    return {os.path.relpath(item.path, root): item.reason for item in found.skipped}


def test_a_messy_folder() -> None:
    """Results, calls, records, journal and metrics are found among notes, tables, summaries and fragments."""
    found = discover(MESSY)
    results, saved = "polar_results/task_t-1", "saved"
    assert list(names(found, MESSY).items()) == [
        ("metrics.jsonl", "metrics"),
        ("polar/journal.jsonl", "journal"),
        (f"{results}/ses_sk-polar-1.json", "polar_session"),
        (f"{results}/ses_sk-polar-2.json", "polar_session"),
        (f"{results}/ses_sk-polar-3.json", "polar_session"),
        (f"{results}/ses_sk-polar-4.json", "polar_session"),
        (f"{results}/ses_sk-polar-10.json", "polar_session"),
        (f"{results}/sessions/sk-polar-1/completions/0001-msg_0123456789ab.json", "completion"),
        (f"{results}/sessions/sk-polar-1/completions/0003-msg_0123456789ac.json", "completion"),
        (f"{saved}/poll.json", "polar_task"),
    ]
    assert reasons(found, MESSY) == {
        f"{saved}/README.md": "no reader for .md",
        f"{saved}/events.jsonl": "JSON lines, but nothing known: objects with data, ts, type",
        f"{saved}/half.json.tmp": "a temporary file of some writer",
        f"{saved}/list.json": "JSON, but no object",
        f"{saved}/one_trace.json": "JSON, but nothing known: an object with finish_reason, loss_mask, "
        "metadata, prompt_ids, prompt_messages, response_ids …",
        f"{saved}/rewards.csv": "no reader for .csv",
        f"{saved}/summary.json": "JSON, but nothing known: an object with mean_reward, rollout_id, sessions",
    }
    assert found.problems == ()


def test_a_messy_folder_loads() -> None:
    """Only results become sessions; torn ones are problems by name, and everything else loads beside them."""
    records = read_files(discover(MESSY).files)
    found = [
        (row["session_id"], os.path.basename(row["path"]))
        for row in rows(records, "session")
        if "session_id" in row
    ]
    assert sorted(found) == [
        ("sk-polar-1", "journal.jsonl"),
        ("sk-polar-1", "ses_sk-polar-1.json"),
        ("sk-polar-10", "ses_sk-polar-10.json"),
        ("sk-polar-2", "poll.json"),
        ("sk-polar-2", "ses_sk-polar-2.json"),
    ]
    assert [(os.path.basename(problem.path), problem.what) for problem in records.problems] == [
        ("journal.jsonl:9", "an incomplete last line"),
        ("ses_sk-polar-3.json", "ends too early"),
        ("ses_sk-polar-4.json", "is empty"),
    ]
    assert len(rows(records, "completion")) == 2
    assert len(rows(records, "group")) == 1
    assert len(rows(records, "metric")) == 6


def test_dumps_are_told_apart(tmp_path: Path) -> None:
    """Training and evaluation, rollout and train dumps; ids sort as numbers; what has no id is left out."""
    for name in ("10.pt", "2.pt", "eval_3.pt", "latest.pt"):
        touch(tmp_path / "rollout_data" / name, corpus.archive(ROLLOUT))
    for name in ("2_0.pt", "10_0.pt", "2_10.pt", "2_1.pt"):
        touch(tmp_path / "train_data" / name, corpus.archive(TRAIN))
    found = discover(tmp_path)
    assert list(names(found, tmp_path).items()) == [
        ("rollout_data/2.pt", "rollout_dump"),
        ("rollout_data/10.pt", "rollout_dump"),
        ("rollout_data/eval_3.pt", "rollout_dump"),
        ("train_data/2_0.pt", "train_dump"),
        ("train_data/2_1.pt", "train_dump"),
        ("train_data/2_10.pt", "train_dump"),
        ("train_data/10_0.pt", "train_dump"),
    ]
    assert "holds no rollout id" in reasons(found, tmp_path)["rollout_data/latest.pt"]


def test_a_lone_dump_without_an_id_is_read(tmp_path: Path) -> None:
    """A template without placeholder leaves one file: it is all there is, so it is read."""
    touch(tmp_path / "dump.pt", corpus.archive(ROLLOUT))
    assert names(discover(tmp_path), tmp_path) == {"dump.pt": "rollout_dump"}


def test_named_files_are_read_whatever_their_name(tmp_path: Path) -> None:
    """A file that the user names is read, if a reader is for it; if none is, that is a problem."""
    touch(tmp_path / "2.pt", corpus.archive(ROLLOUT))
    latest = touch(tmp_path / "latest.pt", corpus.archive(ROLLOUT))
    found = discover([latest])
    assert [file.explicit for file in found.files] == [True]
    found = discover([tmp_path, latest])
    assert names(found, tmp_path) == {"2.pt": "rollout_dump"}, (
        "the folder came first, and it is the same file"
    )
    note = touch(tmp_path / "note.txt")
    found = discover(note)
    assert found.files == ()
    assert [(problem.path, problem.why) for problem in found.problems] == [(str(note), "no reader for .txt")]


def test_duplicates_beside_each_other_are_told(tmp_path: Path) -> None:
    """Two dumps that seem to be of one rollout are both found, and told."""
    for name in ("2.pt", "02.pt", "run_2.pt", "eval_2.pt"):
        touch(tmp_path / name, corpus.archive(ROLLOUT))
    found = discover(tmp_path)
    assert len(found.files) == 4
    assert [os.path.basename(problem.path) for problem in found.problems] == ["2.pt", "run_2.pt"]
    assert {problem.what for problem in found.problems} == {"a second dump of the same rollout"}


def test_symbolic_links(tmp_path: Path) -> None:
    """Links are followed once: loops, second ways to the same file and dead ends are listed."""
    data = tmp_path / "data" / "task_t"
    write_json(data / "ses_1.json", session())
    (data / "loop").symlink_to(tmp_path)
    (tmp_path / "again.json").symlink_to(data / "ses_1.json")
    (tmp_path / "dead.json").symlink_to(tmp_path / "nowhere")
    outside = tmp_path.parent / f"{tmp_path.name}_outside"
    write_json(outside / "task_u" / "ses_2.json", session("s-2"))
    (tmp_path / "other").symlink_to(outside)
    found = discover(tmp_path)
    assert sorted(os.path.basename(file.path) for file in found.files) == ["again.json", "ses_2.json"]
    assert reasons(found, tmp_path) == {
        "data/task_t/loop": f"the same as {tmp_path}",
        "data/task_t/ses_1.json": f"the same as {tmp_path / 'again.json'}",
        "dead.json": "a symbolic link that leads nowhere",
    }


def test_hidden_temporary_and_known_folders(tmp_path: Path) -> None:
    """Hidden and temporary files, tokenizers and our own index are left out; only the last without a word."""
    hidden = [".git/config", ".hidden.json", ".ses_1.json.tmp", ".workbench/index.arrow"]
    for name in (*hidden, "tokenizer/tokenizer.json", "a.json.partial", "b.json~"):
        touch(tmp_path / name, b"{}")
    found = discover(tmp_path)
    assert found.files == ()
    assert sorted(reasons(found, tmp_path)) == [
        ".git",
        ".hidden.json",
        ".ses_1.json.tmp",
        "a.json.partial",
        "b.json~",
        "tokenizer",
    ]


def test_things_that_are_no_files(tmp_path: Path) -> None:
    """Pipes and sockets are neither opened nor waited for."""
    os.mkfifo(tmp_path / "pipe.json")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s.json"))
        found = discover(tmp_path)
    assert reasons(found, tmp_path) == {"pipe.json": "no regular file", "s.json": "no regular file"}


def test_missing_paths_are_errors(tmp_path: Path) -> None:
    """A path that does not exist is a mistake of the caller."""
    with pytest.raises(LoadError, match="no such file"):
        discover(tmp_path / "gone")


def test_folders_that_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without permission is one problem; its neighbours are walked."""
    write_json(tmp_path / "task_a" / "ses_1.json", session())
    closed = tmp_path / "closed"
    closed.mkdir()
    real = os.scandir

    def scandir(path: Any) -> Any:
        if path == str(closed):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = discover(tmp_path)
    assert len(found.files) == 1
    assert [(problem.path, problem.what) for problem in found.problems] == [(str(closed), "cannot be listed")]


def test_known_files_are_not_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the same size and time keeps its kind without a look inside; one that changed does not."""
    path = write_json(tmp_path / "result.json", session())
    first = discover(tmp_path)
    known = {file.path: file for file in first.files}
    opened: list[str] = []
    real = open

    def spy(file: Any, *rest: Any, **options: Any) -> Any:
        opened.append(str(file))
        return real(file, *rest, **options)

    monkeypatch.setattr("builtins.open", spy)
    assert discover(tmp_path, known=known).files == first.files
    assert opened == []
    path.write_text(json.dumps({"a": 1}))
    again = discover(tmp_path, known=known)
    assert again.files == ()
    assert opened == [str(path)]


def test_deep_trees(tmp_path: Path) -> None:
    """A tree of hundreds of levels is walked."""
    folder = tmp_path
    for _ in range(300):
        folder = folder / "d"
    folder.mkdir(parents=True)
    write_json(folder / "result.json", session())
    assert len(discover(tmp_path).files) == 1


@pytest.mark.parametrize(
    ("unsorted", "expected"),
    [
        (["10.pt", "2.pt", "1.pt"], ["1.pt", "2.pt", "10.pt"]),
        (["eval_10.pt", "9.pt", "eval_9.pt"], ["9.pt", "eval_9.pt", "eval_10.pt"]),
        (["task_b", "task_a-10", "task_a-9"], ["task_a-9", "task_a-10", "task_b"]),
        (["9" * 60, "1", "a"], ["1", "9" * 60, "a"]),
        (["", "0"], ["", "0"]),
    ],
)
def test_numbers_sort_as_numbers(unsorted: list[str], expected: list[str]) -> None:
    """Names sort as people count; absurdly long numbers sort as text."""
    assert sorted(unsorted, key=natural_key) == expected


def test_files_of_a_run_load_in_one_go(tmp_path: Path) -> None:
    """A small run folder with every kind of file is found and read without a problem."""
    torch = pytest.importorskip("torch")
    write_json(tmp_path / "polar_results" / "task_t" / "ses_1.json", session())
    (tmp_path / "rollout_data").mkdir()
    torch.save({"rollout_id": 0, "samples": [sample()]}, tmp_path / "rollout_data" / "0.pt")
    found = discover(tmp_path)
    records = read_files(found.files)
    assert records.problems == ()
    assert len(rows(records, "trace")) == 2
    assert SourceFile.at(found.files[0].path, SourceKind.POLAR_SESSION).size == found.files[0].size
