"""`analysis.load`: everything that a run leaves on disk, as one object."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from analysis.errors import LoadError
from analysis.parallel import Engine
from analysis.run import Run
from analysis.run_names import Root
from analysis.sources.base import ReadOptions
from analysis.store import Settings, Store
from analysis.token_text import Decoder

__all__ = ["load"]

PathLike = str | os.PathLike[str]


def load(
    paths: PathLike | Iterable[PathLike] | Mapping[str, PathLike | Iterable[PathLike]],
    *,
    strict: bool = False,
    trusted: bool = False,
    reward_key: str | None = None,
    max_bytes: int | None = None,
    engine: Engine = "auto",
    workers: int | None = None,
    address: str | None = None,
    progress: bool | None = None,
    tokenizer: PathLike | Decoder | None = None,
    index: bool | PathLike = True,
) -> Run:
    """Load whatever lies at some paths: results, dumps, journals, metrics, Parquet.

    Nothing bad in one file touches another: what is wrong is listed in `Run.problems`, what was left out in
    `Run.skipped`. Token arrays are not read.

    Parameters
    ----------
    paths
        A folder or a file; several, which are one run as long as no two folders hold the same kind of file,
        else one each; or a mapping from names of runs to their paths. A folder of several runs is told apart
        by their journals and dumps.
    strict
        Raise at the first problem.
    trusted
        Unpickle dumps that hold more than plain data, which runs whatever they say. Only for files whose
        writer you trust like your own shell.
    reward_key
        Which entry is the reward where a sample's reward is a mapping of several; by default ``score``, else
        ``reward``.
    max_bytes
        Most memory that the content of one file may take; by default half of the machine's, at most 16 GiB.
    engine
        ``serial``, ``processes``, ``ray``, or ``auto``: processes where there is enough to read. The results
        are the same.
    workers
        Processes or tasks at once; by default one per CPU.
    address
        Of a Ray cluster; by default ``RAY_ADDRESS``, else a Ray of our own on this machine.
    progress
        Whether to show a bar; by default after a second, in a terminal or a notebook.
    tokenizer
        For the text of tokens: a Hugging Face folder, or an object with ``decode``; by default the folder
        ``tokenizer`` of the run, if there is one.
    index
        Where to remember what was read: True for ``.workbench`` in the run's folder (in the user's cache
        folder where that cannot be written; not at all for a few megabytes), a folder, or False for nowhere.

    Returns
    -------
    Run
        Frames, tokens, problems; `Run.refresh` reads what is new.

    Raises
    ------
    FileNotFoundError
        A path does not exist.
    StrictLoadError
        With `strict`, at the first problem.
    EngineUnavailableError
        Ray was asked for and cannot be had.

    Examples
    --------
    >>> run = load("runs/lab")  # doctest: +SKIP
    >>> run.sessions().groupby("status")["reward"].mean()  # doctest: +SKIP
    """
    options = ReadOptions(trusted=trusted, reward_key=reward_key, max_bytes=max_bytes)
    settings = Settings(
        options=options,
        strict=strict,
        engine=engine,
        workers=workers,
        address=address,
        progress=progress,
        index=index,
    )
    store = Store(_roots(paths), settings)
    store.refresh()
    return Run(store, tokenizer=tokenizer)


def _roots(paths: PathLike | Iterable[PathLike] | Mapping[str, PathLike | Iterable[PathLike]]) -> list[Root]:
    if isinstance(paths, Mapping):
        return [root for name, own in paths.items() for root in _named(_listed(own), str(name))]
    return _named(_listed(paths), None)


def _listed(paths: PathLike | Iterable[PathLike]) -> list[Path]:
    listed = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    found = [Path(os.path.abspath(os.path.expanduser(path))) for path in listed]
    if not found:
        raise LoadError("nothing to load", "the list of paths is empty", "name a folder or a file")
    for path in found:
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such file or folder")
    return list(dict.fromkeys(found))


def _named(paths: list[Path], label: str | None) -> list[Root]:
    """Make a root of every folder, and one of all single files together."""
    roots = [Root(path, (path,), label) for path in paths if path.is_dir()]
    files = [path for path in paths if not path.is_dir()]
    if files:
        parents = [str(path.parent) for path in files]
        roots.append(Root(Path(os.path.commonpath(parents)), tuple(files), label))
    return roots
