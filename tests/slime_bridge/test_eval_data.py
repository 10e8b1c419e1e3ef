"""Evaluation datasets: precedence of settings, and every mistake named before anything runs."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slime_bridge.errors import EvaluationError
from slime_bridge.evaluation.data import EvalDataset, load_prompts, resolve_eval_datasets


def _write(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def _resolve(datasets: Any, **args: Any) -> list[EvalDataset]:
    return resolve_eval_datasets(SimpleNamespace(eval_datasets=datasets, **args))


KEYS = {
    "input_key": ("eval_input_key", "input_key"),
    "label_key": ("eval_label_key", "label_key"),
    "tool_key": ("eval_tool_key", "tool_key"),
    "metadata_key": ("metadata_key",),
    "n_samples_per_eval_prompt": ("n_samples_per_eval_prompt", "n_samples_per_prompt"),
    "temperature": ("eval_temperature", "rollout_temperature"),
    "top_p": ("eval_top_p", "rollout_top_p"),
    "top_k": ("eval_top_k", "rollout_top_k"),
    "max_response_len": ("eval_max_response_len", "rollout_max_response_len"),
}


@pytest.mark.parametrize("key", KEYS)
def test_a_setting_comes_from_dataset_then_defaults_then_arguments(key: str) -> None:
    """Each key is honoured per dataset, by default, and by each argument, in that order."""
    value = (lambda n: n) if key.startswith(("n_", "max", "top_k")) else (lambda n: f"v{n}")
    if key in ("temperature", "top_p"):
        value = lambda n: n / 10  # noqa: E731 - one of three ways to make distinct values
    args = {name: value(3 + n) for n, name in enumerate(KEYS[key])}
    own, default = {"path": "a.jsonl", key: value(1)}, {key: value(2)}
    content = {"eval": {"defaults": default, "datasets": {"own": own, "default": {"path": "b.jsonl"}}}}
    first, second = _resolve(content, **args)
    assert (getattr(first, key), getattr(second, key)) == (value(1), value(2))
    assert (first.name, second.name) == ("own", "default")
    for _ in KEYS[key]:
        (third,) = _resolve([{"name": "args", "path": "c.jsonl"}], **args)
        name = next(iter(args))
        assert getattr(third, key) == args.pop(name)


def test_without_any_setting_the_documented_defaults_hold() -> None:
    """Slime's column names, one session per prompt, and no sampling limits."""
    (dataset,) = _resolve([{"name": "d", "path": "d.jsonl"}])
    assert (dataset.input_key, dataset.label_key, dataset.metadata_key) == ("input", None, "metadata")
    assert (dataset.n_samples_per_eval_prompt, dataset.sampling_params) == (1, {})
    assert _resolve(None) == _resolve([]) == []


def test_slime_s_own_entries_are_read() -> None:
    """Objects with attributes, as Slime puts them into its arguments."""
    entry = SimpleNamespace(
        **dict(name="aime", path="a.jsonl", rm_type="math", input_key="q", label_key=None, tool_key=None),
        **dict(metadata_key="metadata", n_samples_per_eval_prompt=4, temperature=0.6, top_p=None, top_k=-1),
        **dict(max_response_len=1024, stop=None, stop_token_ids=None, min_new_tokens=None),
        **dict(custom_generate_function_path=None, app_service=None, eval_task_timeout=90),
        metadata_overrides={"split": "test"},
    )
    (dataset,) = _resolve([entry], tool_key="tools")
    assert dataset.sampling_params == {"temperature": 0.6, "top_k": -1, "max_response_len": 1024}
    assert dataset.inject_metadata({"split": "train", "id": 1}) == {
        "split": "test",
        "id": 1,
        "rm_type": "math",
    }
    assert (dataset.n_samples_per_eval_prompt, dataset.eval_task_timeout) == (4, 90)


def test_unknown_and_useless_keys_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    """A misspelt key, and one that cannot have an effect through Polar, do not pass in silence."""
    entry = {"name": "d", "path": "d.jsonl", "temprature": 1, "custom_generate_function_path": "x.y"}
    _resolve({"defaults": {"n_sample": 2}, "datasets": [entry]})
    text = caplog.text
    assert "did you mean 'temperature'" in text
    assert "custom_generate_function_path has no effect" in text
    assert "'n_sample' is not used" in text


@pytest.mark.parametrize(
    ("datasets", "message"),
    [
        ([{"name": "a", "path": "x"}, {"name": "a", "path": "y"}], "two datasets are called 'a'"),
        ([{"path": "x"}], "name must be"),
        ([{"name": " ", "path": "x"}], "name must be"),
        ([{"name": "a"}], "path must be"),
        ([{"name": "a", "path": "x", "n_samples_per_eval_prompt": 0}], "n_samples_per_eval_prompt"),
        ([{"name": "a", "path": "x", "n_samples_per_eval_prompt": True}], "n_samples_per_eval_prompt"),
        ([{"name": "a", "path": "x", "n_samples_per_eval_prompt": 1.5}], "positive integer"),
        ([{"name": "a", "path": "x", "eval_task_timeout": float("nan")}], "positive number"),
        ([{"name": "a", "path": "x", "metadata_overrides": [1]}], "metadata_overrides"),
        ({"dataset": []}, "expected `defaults` and `datasets`"),
    ],
)
def test_unusable_entries_are_named(datasets: Any, message: str) -> None:
    """Duplicate names, missing paths and impossible values are errors with the dataset's name."""
    with pytest.raises(EvaluationError, match=message):
        _resolve(datasets)


def test_rows_become_prompts_with_label_metadata_and_tools(tmp_path: Path) -> None:
    """The configured columns are used; metadata and tools may be JSON text."""
    rows = [
        {"q": "one", "a": 1, "m": {"id": 1}, "t": [{"name": "ls"}]},
        {"q": [{"role": "user", "content": "two"}], "a": None, "m": '{"id": 2}', "t": '[{"name": "cat"}]'},
        {"q": "three", "a": "x", "m": None},
    ]
    path = _write(tmp_path / "d.jsonl", rows)
    keys = {"input_key": "q", "label_key": "a", "metadata_key": "m", "tool_key": "t"}
    (prompts,) = load_prompts([EvalDataset(name="d", path=path, **keys)])
    assert [prompt.prompt for prompt in prompts] == ["one", rows[1]["q"], "three"]
    assert [prompt.label for prompt in prompts] == [1, None, "x"]
    assert prompts[0].metadata == {"id": 1, "tools": [{"name": "ls"}]}
    assert prompts[1].metadata == {"id": 2, "tools": [{"name": "cat"}]}
    assert prompts[2].metadata == {}


@pytest.mark.parametrize(
    ("part", "wanted"),
    [
        ("@[1:3]", [1, 2]),
        ("@[:2]", [0, 1]),
        ("@[3:]", [3, 4]),
        ("@[:]", [0, 1, 2, 3, 4]),
        ("", [0, 1, 2, 3, 4]),
    ],
)
def test_a_slice_takes_rows(tmp_path: Path, part: str, wanted: list[int]) -> None:
    """Start and stop count rows, blank lines left out."""
    path = tmp_path / "d.jsonl"
    path.write_text("\n\n".join(json.dumps({"input": i}) for i in range(5)))
    (prompts,) = load_prompts([EvalDataset(name="d", path=str(path) + part)])
    assert [prompt.prompt for prompt in prompts] == wanted


@pytest.mark.parametrize(
    ("content", "part", "message"),
    [
        ('{"input": 1}\n{"inp', "", "line 2 is not JSON"),
        ("[1]\n", "", "line 1 is no object"),
        ("", "", "has no rows"),
        ('{"input": 1}\n', "@[4:]", "has no rows"),
        ('{"input": 1}\n', "@[-1:]", "negative"),
        ('{"prompt": 1}\n', "", "row 0: there is no column 'input'"),
        ('{"input": 1, "metadata": "text"}\n', "", "metadata is a text that is not JSON"),
        ('{"input": 1, "metadata": [1]}\n', "", "metadata must be a mapping"),
    ],
)
def test_unusable_files_are_errors(tmp_path: Path, content: str, part: str, message: str) -> None:
    """A cut line, an empty slice or a missing column names file, line or row."""
    path = tmp_path / "d.jsonl"
    path.write_text(content)
    with pytest.raises(EvaluationError, match=message):
        load_prompts([EvalDataset(name="d", path=str(path) + part)])


def test_missing_files_and_unknown_formats_are_errors(tmp_path: Path) -> None:
    """No file, a folder, and a CSV file."""
    for path in ("nowhere.jsonl", "."):
        with pytest.raises(EvaluationError, match="cannot be read"):
            load_prompts([EvalDataset(name="d", path=str(tmp_path / path))])
    (tmp_path / "d.csv").write_text("a,b")
    with pytest.raises(EvaluationError, match=r"neither \.jsonl nor \.parquet"):
        load_prompts([EvalDataset(name="d", path=str(tmp_path / "d.csv"))])


def test_parquet_needs_pyarrow_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With pyarrow rows are read; without it the error names the package."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "d.parquet"
    table = arrow.table({"input": ["a", "b"], "metadata": [{"id": 1}, {"id": 2}]})
    parquet.write_table(table, path)
    (prompts,) = load_prompts([EvalDataset(name="d", path=f"{path}@[1:2]")])
    assert [(prompt.prompt, prompt.metadata) for prompt in prompts] == [("b", {"id": 2})]
    path.write_bytes(b"no parquet")
    with pytest.raises(EvaluationError, match="not a Parquet file"):
        load_prompts([EvalDataset(name="d", path=str(path))])
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(EvaluationError, match="needs pyarrow"):
        load_prompts([EvalDataset(name="d", path=str(path))])


def _manifest(*entries: dict[str, Any], **changes: Any) -> str:
    content = {"schema_version": 1, "algorithm": "sha256", "datasets": list(entries), **changes}
    return base64.b64encode(json.dumps(content).encode()).decode()


def test_integrity_holds_for_the_bytes_that_are_parsed(tmp_path: Path) -> None:
    """The listed hash must be the file's; datasets that are not listed, or another file, are refused."""
    path = _write(tmp_path / "d.jsonl", [{"input": "x"}, {"input": "y"}])
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    good = {"name": "d", "path": path, "sha256": digest.upper()}
    dataset = EvalDataset(name="d", path=path + "@[0:1]")
    assert len(load_prompts([dataset], integrity=_manifest(good))[0]) == 1
    for entry, message in [
        ({**good, "sha256": "0" * 64}, "has SHA-256"),
        ({**good, "name": "other"}, "is not in"),
        ({**good, "path": "other.jsonl"}, "listed is other.jsonl"),
    ]:
        with pytest.raises(EvaluationError, match=message):
            load_prompts([dataset], integrity=_manifest(entry))


@pytest.mark.parametrize(
    "manifest",
    [
        "no base64!",
        base64.b64encode(b"[]").decode(),
        base64.b64encode(b"{}").decode(),
        _manifest(schema_version=2),
        _manifest(algorithm="md5"),
        _manifest({"name": "d"}),
        _manifest({"name": "d", "path": "p", "sha256": 5}),
        _manifest(*[{"name": "d", "path": "p", "sha256": "0"}] * 2),
    ],
)
def test_a_broken_manifest_is_an_error(tmp_path: Path, manifest: str) -> None:
    """A manifest that proves nothing must not pass for proof."""
    path = _write(tmp_path / "d.jsonl", [{"input": "x"}])
    with pytest.raises(EvaluationError, match="POLAR_EVAL_DATA_INTEGRITY_B64"):
        load_prompts([EvalDataset(name="d", path=path)], integrity=manifest)
