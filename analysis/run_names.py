"""Which run each file belongs to: ids such as rollout 3 or group 7 mean nothing across runs.

What lies under one folder is one run, unless the same kind of record lies there more than once: then each
folder that has its own journal or dumps is a run. Folders that were named together are one run as long as no
two of them hold the same kind of file: a server's results beside a trainer's dumps. Looks at names only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from analysis.sources.base import SourceFile, SourceKind

__all__ = ["Root", "name_runs"]

_PLACES = {
    SourceKind.ROLLOUT_DUMP: "rollout_data",
    SourceKind.TRAIN_DUMP: "train_data",
    SourceKind.JOURNAL: "polar",
}
"""Kinds of which a run has one place, and the folder that they usually lie in."""


@dataclass(frozen=True)
class Root:
    """Something that the user named.

    Attributes
    ----------
    folder
        The folder, or the one that the named files have in common.
    paths
        The folder, or the files.
    label
        Name of the run that all of it belongs to; None to find out.
    """

    folder: Path
    paths: tuple[Path, ...]
    label: str | None = None

    @property
    def is_folder(self) -> bool:
        """Whether it is a whole folder."""
        return self.paths == (self.folder,)


def name_runs(roots: Sequence[Root], files: Sequence[Sequence[SourceFile]]) -> dict[str, str]:
    """Give every file the name of its run.

    Parameters
    ----------
    roots
        What the user named.
    files
        What was found in each.

    Returns
    -------
    dict
        From path to name. Names are unique among the roots.
    """
    labels = _labels(roots, files)
    names: dict[str, str] = {}
    for root, label, found in zip(roots, labels, files, strict=True):
        bases = [] if root.label is not None else _bases(root.folder, found)
        if not bases:
            names.update((file.path, label) for file in found)
            continue
        for file in found:
            base = _base_of(_relative(file.path, root.folder), bases)
            inner = base if len(roots) == 1 or base is None else f"{label}/{base}"
            names[file.path] = label if inner is None else inner
    return names


def _labels(roots: Sequence[Root], files: Sequence[Sequence[SourceFile]]) -> list[str]:
    """Name the roots: as labelled; joined where their kinds of files complete each other; else one by one."""
    kinds = [{file.kind for file in found} for found in files]
    labels: list[str] = []
    heads: dict[str, set[SourceKind]] = {}
    for root, own in zip(roots, kinds, strict=True):
        if root.label is not None:
            labels.append(root.label)
            continue
        if not own:
            labels.append("")  # nothing to name here
            continue
        matching = [name for name, known in heads.items() if not known & own]
        if len(matching) == 1 and len(heads) == 1:
            label = matching[0]
        else:
            label = _unique(root.folder, {*labels, *heads})
        heads.setdefault(label, set()).update(own)
        labels.append(label)
    return labels


def _unique(folder: Path, taken: set[str]) -> str:
    name = folder.name or "run"
    if name in taken and folder.parent.name:
        name = f"{folder.parent.name}/{name}"
    number, plain = 2, name
    while name in taken:
        name, number = f"{plain} ({number})", number + 1
    return name


def _relative(path: str, folder: Path) -> PurePath:
    try:
        return PurePath(path).relative_to(folder)
    except ValueError:
        return PurePath(PurePath(path).name)


def _bases(folder: Path, files: Sequence[SourceFile]) -> list[str]:
    """Return the folders that are runs of their own; none where all of it is one run."""
    found: dict[SourceKind, set[str]] = {}
    for file in files:
        if file.kind in _PLACES:
            parent = _relative(file.path, folder).parent
            base = parent.parent if parent.name == _PLACES[file.kind] else parent
            found.setdefault(file.kind, set()).add("" if str(base) == "." else base.as_posix())
    if all(len(places) < 2 for places in found.values()):
        return []
    bases = set().union(*found.values()) - {""}
    # A folder inside a run's folder is a part of that run.
    return sorted(base for base in bases if not any(base.startswith(f"{other}/") for other in bases))


def _base_of(path: PurePath, bases: Sequence[str]) -> str | None:
    text = path.as_posix()
    return next((base for base in bases if text.startswith(f"{base}/")), None)
