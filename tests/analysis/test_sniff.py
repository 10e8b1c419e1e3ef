"""What a file is: from its name where that is certain, else from its first bytes."""

from __future__ import annotations

import json
from pathlib import PurePath

import pytest

from analysis.sniff import HEAD_BYTES, by_content, by_name, is_unnamed_dump, top_level_keys
from analysis.sources.base import SourceKind
from tests.analysis import pickle_corpus as corpus
from tests.analysis.sources.source_files import session


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("task_t-1/ses_sk-polar-1.json", SourceKind.POLAR_SESSION),
        ("task_t-1/sessions/s/completions/0001-msg_ab.json", SourceKind.COMPLETION),
        ("polar/journal.jsonl", SourceKind.JOURNAL),
        ("polar/journal.3.jsonl", SourceKind.JOURNAL),
        ("polar/rejected.jsonl", SourceKind.REJECTED),
        ("metrics.jsonl", SourceKind.METRICS),
        ("run-abc.wandb", SourceKind.WANDB),
        ("elsewhere/ses_1.json", None),
        ("journal_notes.jsonl", None),
        ("completions/readme.json", None),
        ("1.pt", None),
    ],
)
def test_names(path: str, kind: SourceKind | None) -> None:
    """Only names and places that one format has decide."""
    assert by_name(path) == kind


def encoded(value: object) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    ("name", "head", "kind"),
    [
        ("a.json", encoded(session()), SourceKind.POLAR_SESSION),
        ("a.json", json.dumps(session(), indent=2).encode(), SourceKind.POLAR_SESSION),
        ("a.json", encoded({"task_id": "t", "status": "x", "results": []}), SourceKind.POLAR_TASK),
        ("a.json", encoded({"task_id": "t", "total_sessions": 3}), SourceKind.POLAR_TASK),
        ("a.json", encoded({"completion_id": "m", "response": {}}), SourceKind.COMPLETION),
        ("ses_1.json", b'{"session_id": "a", "tas', SourceKind.POLAR_SESSION),
        ("ses_1.json", b"", SourceKind.POLAR_SESSION),
        ("a.jsonl", b'{"v": 1, "seq": 0, "ts": 1, "event": "x"}\n', SourceKind.JOURNAL),
        ("a.jsonl", b'{"v": 1, "group": 0, "samples": []}\n', SourceKind.REJECTED),
        ("a.jsonl", b'{"v": 1, "group": 0, "samples": [{"tokens": [1, 2', SourceKind.REJECTED),
        ("a.jsonl", b'\n{"step": 1, "train/loss": 0.5}\n', SourceKind.METRICS),
        ("metrics_old.jsonl", b"", SourceKind.METRICS),
        ("a.parquet", b"PAR1....", SourceKind.PARQUET),
        ("7.pt", b"", SourceKind.ROLLOUT_DUMP),
        ("rollout_data/x.pt", b"\x80\x02", SourceKind.ROLLOUT_DUMP),
        ("train_data/7_0.pt", b"junk", SourceKind.TRAIN_DUMP),
    ],
)
def test_contents(name: str, head: bytes, kind: SourceKind) -> None:
    """Renamed, torn and saved files are what their content says, or what their place promises."""
    assert by_content(PurePath(name), head) == kind


@pytest.mark.parametrize(
    ("name", "head", "reason"),
    [
        ("a.json", b"", "an empty file"),
        ("a.json", b"\x00\x00", "an empty file"),
        ("a.json", b"[1]", "no object"),
        ("a.json", b"hello", "not JSON"),
        ("a.json", encoded({"a": 1}), "an object with a"),
        ("a.json", encoded({"prompt": {"session_id": 1, "trajectory": 2}}), "an object with prompt"),
        ("a.jsonl", encoded({"prompt": "x", "label": "y"}), "objects with label, prompt"),
        ("a.jsonl", b"hello\n", "no complete object"),
        ("a.parquet", b"PK", "not a Parquet file"),
        ("a.json.gz", b"\x1f\x8b", "compressed"),
        ("a.pt", b"junk", "no archive"),
        ("model_3.pt", corpus.archive(corpus.whole(b"}")), "none of Slime's dumps"),
        ("samples.pt", corpus.archive(corpus.whole(b"}"), root="samples"), "none of Slime's dumps"),
        ("noextension", b"x", "files without an extension"),
    ],
)
def test_reasons(name: str, head: bytes, reason: str) -> None:
    """A file that no reader is for gets a reason that says what was seen."""
    found = by_content(PurePath(name), head)
    assert not isinstance(found, SourceKind)
    assert reason in found


def test_dumps_by_content() -> None:
    """The names at the beginning of the pickle tell dumps apart, whatever the file is called."""
    samples = corpus.whole(b"}(" + corpus.text("rollout_id") + b"K\x01" + corpus.text("samples") + b"]u")
    train = corpus.whole(b"}(" + corpus.text("rollout_id") + b"K\x01" + corpus.text("rollout_data") + b"}u")
    assert (
        by_content(PurePath("x_1_2.pt"), corpus.archive(samples, root="rollout_data_1"))
        == SourceKind.ROLLOUT_DUMP
    )
    assert by_content(PurePath("3.pt"), corpus.archive(train)) == SourceKind.TRAIN_DUMP


def test_keys_beyond_the_head() -> None:
    """A result whose telling key comes after the first kilobytes is still taken for one."""
    value = {"session_id": "a", "task_id": "t", "status": "COMPLETED", "metadata": {"x": "y" * HEAD_BYTES}}
    assert by_content(PurePath("a.json"), encoded(value)[:HEAD_BYTES]) == SourceKind.POLAR_SESSION


@pytest.mark.parametrize(
    ("head", "keys"),
    [
        (b'{"a": 1, "b": {"c": [1, {"d": 2}]}, "e": "f:g"}', ["a", "b", "e"]),
        (b'{"a\\"b": 1, "\\u0063": ": {"}', ['a"b', "c"]),
        (b'{"a": "cut off', ["a"]),
        (b'{"a": 1} {"b": 2}', ["a"]),
        (b"[1]", []),
        (b"", []),
        (b'{"bad \\x escape": 1}', []),
    ],
)
def test_top_level_keys(head: bytes, keys: list[str]) -> None:
    """Keys of the outer object only, as far as it is there, whatever strings hold."""
    assert list(top_level_keys(head)) == keys


@pytest.mark.parametrize(
    ("name", "expected"), [("latest.pt", True), ("7.pt", False), ("eval_7.pt", False), ("7.json", False)]
)
def test_unnamed_dumps(name: str, expected: bool) -> None:
    """A dump whose name holds no number cannot be placed by name."""
    assert is_unnamed_dump(PurePath(name)) is expected
