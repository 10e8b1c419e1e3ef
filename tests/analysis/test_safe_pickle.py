"""Loading dumps without PyTorch: the same values as PyTorch, and nothing that a hostile file wants."""

from __future__ import annotations

import collections
import datetime
import enum
import gc
import json
import pathlib
import resource
import subprocess
import sys
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.errors import (
    FileLimitError,
    ForeignFileError,
    IncompleteFileError,
    LoadError,
    UnsafePickleError,
)
from analysis.safe_pickle import load_pt
from tests.analysis import pickle_corpus as corpus

ROOT = Path(__file__).resolve().parents[2]
torch = pytest.importorskip("torch")


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Note:
    text: str


def saved(path: Path, value: Any, **options: Any) -> Path:
    torch.save(value, path, **options)
    return path


def plain_dump() -> dict[str, Any]:
    return {
        "rollout_id": 3,
        "samples": [
            {
                "index": 0,
                "tokens": [1, 300, 151_644, -1, 2**40, 2**70],
                "loss_mask": [0, 1, 1],
                "rollout_log_probs": [0.0, -0.5, float("-inf")],
                "reward": {"score": 1.0},
                "status": "completed",
                "metadata": {
                    "set": {1, "a"},
                    "frozen": frozenset({2}),
                    "raw": b"\x00\xff",
                    "t": (1, ("x",)),
                    "n": None,
                },
                "response": "Grüße \N{GRINNING FACE}",
                "remove_sample": False,
                "big": bytearray(b"xyz"),
                "complex": 1j,
            }
        ],
    }


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_dumps_load_as_with_torch(tmp_path: Path, protocol: int) -> None:
    """Whatever torch's weights-only loader reads of a plain dump, this loader reads the same."""
    path = saved(tmp_path / "3.pt", plain_dump(), pickle_protocol=protocol)
    assert load_pt(path) == plain_dump()
    if protocol == 2:
        value = {key: item for key, item in plain_dump().items() if key == "rollout_id"}
        assert load_pt(saved(path, value)) == torch.load(path, weights_only=True)


def test_loading_equals_torchs_weights_only_loader(tmp_path: Path) -> None:
    """A dump of ordinary samples gives equal objects of equal types through both loaders."""
    sample = plain_dump()["samples"][0]
    del sample["metadata"]["frozen"], sample["big"], sample["complex"]
    path = saved(tmp_path / "3.pt", {"rollout_id": 3, "samples": [sample] * 3})
    ours, theirs = load_pt(path), torch.load(path, weights_only=True)
    assert ours == theirs
    assert repr(ours) == repr(theirs)


def test_shared_objects_stay_shared(tmp_path: Path) -> None:
    """Samples of one prompt share their metadata in the dump and in memory."""
    shared = {"a": [1]}
    content = load_pt(saved(tmp_path / "1.pt", [shared, shared]))
    assert content[0] is content[1]


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_numpy_arrays_and_scalars(tmp_path: Path, protocol: int) -> None:
    """Arrays of routed experts, masks and texts come back equal; scalars become Python numbers."""
    arrays = {
        "experts": np.arange(24, dtype=np.int32).reshape(2, 3, 4),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "bool": np.array([True, False]),
        "big endian": np.arange(3, dtype=">i4"),
        "half": np.array([1.5], dtype=np.float16),
        "text": np.array(["ab", "c"]),
        "bytes": np.array([b"ab", b"c"]),
        "empty": np.zeros((0, 3)),
        "scalar array": np.array(7),
    }
    scalars = {"f": np.float32(0.5), "i": np.int64(-3), "b": np.bool_(True), "nan": np.float64("nan")}
    content = load_pt(saved(tmp_path / "1.pt", {**arrays, **scalars}, pickle_protocol=protocol))
    for name, array in arrays.items():
        assert isinstance(content[name], np.ndarray)
        # NumPy's own unpickler turns foreign byte order into the machine's, too.
        assert content[name].dtype.newbyteorder("=") == array.dtype.newbyteorder("=")
        np.testing.assert_array_equal(np.asarray(content[name]), array)
    assert [content["f"], content["i"], content["b"]] == [0.5, -3, True]
    assert [type(content[name]) for name in "fib"] == [float, int, bool]
    assert np.isnan(content["nan"])


@pytest.mark.parametrize("spelling", ["numpy.core", "numpy._core"])
def test_both_spellings_of_numpy(tmp_path: Path, spelling: str) -> None:
    """NumPy 1 and NumPy 2 put other module names into the same array; both load."""
    path = tmp_path / "1.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = corpus.whole(
            corpus.call(
                corpus.name(f"{spelling}.multiarray", "scalar"),
                corpus.call(corpus.name("numpy", "dtype"), corpus.text("f8"), b"\x89", b"\x88"),
                corpus.raw_bytes(np.float64(2.5).tobytes()),
            )
        )
    path.write_bytes(corpus.archive(data))
    assert load_pt(path) == 2.5


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (Colour.RED, "Colour"),
        (Note("x"), "Note"),
        (datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), "datetime.datetime"),
        (pathlib.PurePosixPath("/a"), "PurePosixPath"),
        (collections.defaultdict(list), "collections.defaultdict"),
    ],
)
def test_classes_need_trust_and_the_error_says_so(tmp_path: Path, value: Any, kind: str) -> None:
    """An enum, dataclass, date or path in metadata is refused by name, with the option; trusted, it loads."""
    path = saved(tmp_path / "1.pt", {"rollout_id": 1, "samples": [{"metadata": {"x": value}}]})
    with pytest.raises(UnsafePickleError, match=kind) as caught:
        load_pt(path)
    assert "trusted=True" in str(caught.value)
    assert load_pt(path, trusted=True)["samples"][0]["metadata"]["x"] == value


def test_trusted_files_load_without_their_classes(tmp_path: Path) -> None:
    """Somebody without the trainer installed can look at a dump that they trust: classes become stand-ins."""
    body = corpus.call(
        corpus.call(
            corpus.name("__builtin__", "getattr"),
            corpus.name("not_installed.types", "Sample"),
            corpus.text("Status"),
        ),
        corpus.text("completed"),
    )
    path = tmp_path / "1.pt"
    path.write_bytes(corpus.archive(corpus.whole(body)))
    with pytest.raises(UnsafePickleError, match=r"not_installed\.types\.Sample"):
        load_pt(path)
    found = load_pt(path, trusted=True)
    assert repr(found) == "<not_installed.types.Sample.Status ('completed',)>"


def test_the_old_format_is_named(tmp_path: Path) -> None:
    """A file of torch's format before 1.6 is no mystery: the error says what it is and what to do."""
    path = saved(tmp_path / "1.pt", {"a": 1}, _use_new_zipfile_serialization=False)
    with pytest.raises(ForeignFileError, match="old format") as caught:
        load_pt(path)
    assert "torch.load" in caught.value.fix


def test_garbage_collection_is_as_before(tmp_path: Path) -> None:
    """The collector pauses while a dump is built, also when that fails, and runs again afterwards."""
    path = tmp_path / "1.pt"
    path.write_bytes(corpus.archive(corpus.whole(b"K\x01)R")))
    with pytest.raises(LoadError):
        load_pt(path)
    assert gc.isenabled()


def test_truncation_at_every_byte(tmp_path: Path) -> None:
    """Whatever part of a dump is there, loading it ends in a typed error, never in anything else."""
    whole = saved(
        tmp_path / "1.pt", {"rollout_id": 1, "samples": [{"tokens": [1, 2, 300], "x": torch.ones(2)}]}
    ).read_bytes()
    path = tmp_path / "cut.pt"
    for length in range(len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(IncompleteFileError):
            load_pt(path)


def test_pickle_truncation_at_every_byte(tmp_path: Path) -> None:
    """The same for a pickle that is cut inside a whole archive."""
    data = b"\x80\x02" + corpus.text("abc") + corpus.number(70_000) + b"G" + b"\x00" * 8 + b"\x87" + b"."
    path = tmp_path / "cut.pt"
    for length in range(len(data)):
        path.write_bytes(corpus.archive(data[:length]))
        with pytest.raises(IncompleteFileError):
            load_pt(path)


@pytest.mark.parametrize("seed", range(8))
def test_damaged_pickles_end_in_typed_errors(tmp_path: Path, seed: int) -> None:
    """Random damage gives another value or a typed error; nothing else ever comes out."""
    rng = np.random.default_rng(seed)
    body = saved(tmp_path / "1.pt", {"samples": [{"tokens": [1, 2], "m": {1: (2, b"x")}, "a": np.arange(3)}]})
    data = zipfile.ZipFile(body).read("1/data.pkl")
    path = tmp_path / "bad.pt"
    outcomes = collections.Counter[str]()
    for _ in range(150):
        damaged = bytearray(data)
        for place in rng.integers(0, len(data), size=int(rng.integers(1, 4))):
            damaged[place] = int(rng.integers(256))
        path.write_bytes(corpus.archive(bytes(damaged)))
        try:
            load_pt(path, max_bytes=1 << 28)
            outcomes["value"] += 1
        except LoadError as error:
            outcomes[type(error).__name__] += 1
    assert outcomes.total() == 150


@pytest.mark.parametrize("kind", sorted(corpus.executing()))
def test_nothing_is_executed(tmp_path: Path, kind: str) -> None:
    """Pickles that name functions are refused before they are executed."""
    path = tmp_path / "1.pt"
    path.write_bytes(corpus.archive(corpus.executing()[kind]))
    with pytest.raises(UnsafePickleError) as caught:
        load_pt(path)
    assert "trusted=True" in str(caught.value)


@pytest.mark.parametrize("kind", sorted(corpus.bending()))
def test_allowed_names_cannot_be_bent(tmp_path: Path, kind: str) -> None:
    """What is allowed checks its arguments: no other class, no strange state, nothing outside the archive."""
    path = tmp_path / "1.pt"
    path.write_bytes(corpus.archive(corpus.bending()[kind], members={"data/0": b"\x00" * 16}))
    with pytest.raises(LoadError):
        load_pt(path)


def test_a_bent_load_leaves_the_next_one_alone(tmp_path: Path) -> None:
    """State that a pickle pushes into an allowed function does not outlive the load."""
    path = tmp_path / "1.pt"
    for data in corpus.bending().values():
        path.write_bytes(corpus.archive(data, members={"data/0": b"\x00" * 16}))
        with pytest.raises(LoadError):
            load_pt(path)
    np.testing.assert_array_equal(load_pt(saved(path, torch.arange(3.0))), [0.0, 1.0, 2.0])


@pytest.mark.parametrize("kind", sorted(corpus.swelling()))
def test_memory_is_bounded(tmp_path: Path, kind: str) -> None:
    """A small file that would take gigabytes is refused by its look, or when its budget is spent."""
    path = tmp_path / "1.pt"
    path.write_bytes(corpus.archive(corpus.swelling()[kind], members={"data/big": b"\x00" * 1_000_000}))
    with pytest.raises(LoadError):
        load_pt(path, max_bytes=64 << 20)


def test_a_larger_limit_lets_a_large_dump_through(tmp_path: Path) -> None:
    """The limit is the caller's: the error names the option, and raising it helps."""
    path = saved(tmp_path / "1.pt", {"samples": [list(range(300, 200_300))]})
    with pytest.raises(FileLimitError, match="max_bytes"):
        load_pt(path, max_bytes=1 << 20)
    assert len(load_pt(path, max_bytes=1 << 25)["samples"][0]) == 200_000


def test_deep_lists_do_no_harm(tmp_path: Path) -> None:
    """A list nested a hundred thousand times loads and goes again without a crash."""
    depth = 100_000
    path = tmp_path / "1.pt"
    path.write_bytes(corpus.archive(corpus.whole(b"]" * depth + b"a" * (depth - 1))))
    value = load_pt(path)
    for _ in range(depth - 1):
        (value,) = value
    assert value == []


def test_many_tuples_are_not_deep_ones(tmp_path: Path) -> None:
    """A dump with a tuple in every sample's metadata is no attack."""
    content = {"samples": [{"metadata": {"span": ("a", ("b", i))}} for i in range(15_000)]}
    assert load_pt(saved(tmp_path / "1.pt", content)) == content


_WATCHED = """
import json, resource, sys
from pathlib import Path
from analysis.errors import LoadError
from analysis.safe_pickle import load_pt

folder = Path(sys.argv[1])
seen, current = [], None
quiet = ("object.", "gc.", "sys.", "builtins.id", "os.scandir", "os.listdir")

def hook(event, arguments):
    if current is not None and not event.startswith(quiet):
        if event == "open" and arguments and str(arguments[0]) == current:
            return
        seen.append([current, event, repr(arguments)[:80]])

load_pt(folder / "good.pt")
"".encode("cp437")  # zipfile decodes names with it, and the first use imports it
sys.addaudithook(hook)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
outcomes = {}
for path in sorted(folder.glob("bad_*.pt")):
    current = str(path)
    try:
        load_pt(path, max_bytes=64 << 20)
        outcomes[path.stem] = "loaded"
    except LoadError as error:
        outcomes[path.stem] = type(error).__name__
    current = None
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"seen": seen, "outcomes": outcomes, "grown": (after - before) / 1024}))
"""


def test_the_whole_corpus_in_a_watched_process(tmp_path: Path) -> None:
    """Every hostile file, in a process of limited memory that records audited actions: there are none."""
    cases = {**corpus.executing(), **corpus.bending(), **corpus.swelling()}
    for number, data in enumerate(cases.values()):
        content = corpus.archive(data, members={"data/0": b"\x00" * 16, "data/big": b"\x00" * 1_000_000})
        (tmp_path / f"bad_{number:03d}.pt").write_bytes(content)
    saved(tmp_path / "good.pt", {"a": np.arange(3), "b": torch.ones(2)})
    limit = 4 << 30
    done = subprocess.run(
        [sys.executable, "-c", _WATCHED, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={
            "PYTHONPATH": str(ROOT),
            "PATH": "/usr/bin:/bin",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        },
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert report["seen"] == []
    assert "loaded" not in report["outcomes"].values()
    assert len(report["outcomes"]) == len(cases)
    assert report["grown"] < 300, "MiB"
    assert not (tmp_path / "canary").exists()
