"""Rollout 3 of one run is never rollout 3 of another."""

from __future__ import annotations

from pathlib import Path

from analysis.run_names import Root, name_runs
from analysis.sources.base import SourceFile, SourceKind

KINDS = {
    "ses": SourceKind.POLAR_SESSION,
    "jou": SourceKind.JOURNAL,
    "met": SourceKind.METRICS,
}


def kind_of(path: str) -> SourceKind:
    name = path.rpartition("/")[2]
    if name[:3] in KINDS:
        return KINDS[name[:3]]
    return SourceKind.TRAIN_DUMP if "_" in name else SourceKind.ROLLOUT_DUMP


def names(*roots: tuple[str, str | None, list[str]]) -> dict[str, str]:
    made = [Root(Path(folder), (Path(folder),), label) for folder, label, _ in roots]
    files = [[SourceFile(f"{folder}/{path}", kind_of(path)) for path in paths] for folder, _, paths in roots]
    return name_runs(made, files)


LAB = [
    "metrics.jsonl",
    "polar/journal.jsonl",
    "rollout_data/0.pt",
    "train_data/0_0.pt",
    "results/task_1/ses_a.json",
]


def test_a_folder_is_one_run_named_after_itself() -> None:
    """However deep its files lie, and wherever the server wrote its part."""
    assert set(names(("/runs/lab", None, LAB)).values()) == {"lab"}
    spread = [
        "dump/rollout_data/0.pt",
        "save/polar/journal.jsonl",
        "results/ses_a.json",
        "eval/metrics.jsonl",
    ]
    assert set(names(("/runs/lab", None, spread)).values()) == {"lab"}


def test_a_folder_of_runs_is_told_apart() -> None:
    """Two journals, two sets of dumps: each folder that has its own is a run; the rest is the folder's."""
    found = names(("/runs", None, [f"{run}/{path}" for run in ("a", "b") for path in LAB] + ["ses_x.json"]))
    assert found["/runs/a/rollout_data/0.pt"] == found["/runs/a/results/task_1/ses_a.json"] == "a"
    assert found["/runs/b/metrics.jsonl"] == "b"
    assert found["/runs/ses_x.json"] == "runs"
    nested = [
        "a/dump/rollout_data/0.pt",
        "a/polar/journal.jsonl",
        "b/dump/rollout_data/0.pt",
        "b/polar/journal.jsonl",
    ]
    found = names(("/runs", None, nested))
    assert set(found.values()) == {"a", "b"}
    assert found["/runs/a/dump/rollout_data/0.pt"] == "a"


def test_folders_that_complete_each_other_are_one_run() -> None:
    """The server's results lie elsewhere than the trainer's dumps."""
    found = names(
        ("/ckpt/one", None, ["polar/journal.jsonl", "rollout_data/0.pt"]), ("/save", None, ["t/ses_a.json"])
    )
    assert set(found.values()) == {"one"}


def test_folders_with_the_same_kinds_are_runs_of_their_own() -> None:
    """Two runs to compare; equal folder names get their parent's, then a number."""
    found = names(("/x/run", None, LAB), ("/y/run", None, LAB), ("/y/run/", "mine", LAB[:1]))
    assert found["/x/run/metrics.jsonl"] == "run"
    assert found["/y/run/rollout_data/0.pt"] == "y/run"
    third = names(("/a", None, LAB), ("/b", None, LAB), ("/save", None, ["ses_a.json"]))
    assert third["/save/ses_a.json"] == "save"


def test_labels_are_obeyed() -> None:
    """What the user calls one run is one run."""
    found = names(
        ("/x", "base", [f"{part}/{path}" for part in "ab" for path in LAB]), ("/save", "base", ["ses_a.json"])
    )
    assert set(found.values()) == {"base"}


def test_runs_in_one_of_several_folders_keep_its_name() -> None:
    """Names stay unique when a folder of runs is named beside another one."""
    both = [f"{run}/{path}" for run in "ab" for path in LAB]
    found = names(("/x", None, both), ("/y", None, both))
    assert {found["/x/a/metrics.jsonl"], found["/y/a/metrics.jsonl"]} == {"x/a", "y/a"}
