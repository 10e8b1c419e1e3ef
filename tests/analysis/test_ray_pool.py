"""The same results, bit for bit, from a Ray on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from analysis.errors import EngineUnavailableError, WorkerError
from analysis.lab.run_folder import RunFolder
from analysis.parallel import Plan, map_chunks
from analysis.ray_address import check_address
from analysis.ray_pool import RayPool
from tests.analysis import pool_jobs
from tests.analysis.test_loading import load, same

ray: Any = pytest.importorskip("ray", reason="Ray is not installed (pip install ray)")

# Starting Ray takes seconds, on a busy machine many.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

RAY = Plan("ray", 2)


@pytest.fixture(scope="module", autouse=True)
def started() -> Iterator[RayPool]:
    """A Ray of the pool's own for all tests here: starting one takes seconds. It ends with the pool."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        with RayPool(pool_jobs.square, 2) as pool:
            assert ray.is_initialized()
            yield pool
        assert not ray.is_initialized()


def lost(item: object, why: str) -> tuple[object, str]:
    return item, why


def test_results_come_in_order_and_from_other_processes() -> None:
    """Tasks run on Ray's workers, which find this package without being told where it is."""
    chunks = [[number] for number in range(20)]
    done = list(map_chunks(pool_jobs.pid_and_items, chunks, RAY, lost=lost))
    assert [items for _, items in done] == chunks
    assert os.getpid() not in {pid for pid, _ in done}
    assert list(map_chunks(pool_jobs.square, [], RAY, lost=lost)) == []


def test_an_error_of_the_function_comes_out_as_it_is() -> None:
    """Strict loading relies on it: not Ray's wrapping, the error itself."""
    with pytest.raises(WorkerError, match="negative: -7"):
        list(map_chunks(pool_jobs.picky, [[1], [-7], [2]], RAY, lost=lost))


def test_only_the_item_that_kills_its_worker_is_lost() -> None:
    """Its neighbours are computed one by one."""
    results = list(map_chunks(pool_jobs.deadly, [[1], [3, "poison"]], RAY, lost=lost))
    assert results == [[1], [3], ("poison", "the worker process died")]


def test_a_run_loads_to_the_same_frames_and_tokens(
    embedded: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Serial and on Ray: every frame, problems, token arrays byte for byte."""
    monkeypatch.setattr("analysis.parallel.CHUNK_FILES", 8)
    (embedded.polar_results / "ses_torn.json").write_text("{")
    serial, spread = load(embedded.root), load(embedded.root, engine="ray", workers=2)
    assert same(serial, spread)
    assert serial.problems.equals(spread.problems)
    one, other = serial.token_arrays(), spread.token_arrays()
    for name in ("ids", "mask", "trainable", "logprob", "train_logprob", "advantage"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes()


def test_a_dataset_is_written_by_ray_too(embedded: RunFolder) -> None:
    """The same files as in this process."""
    run = load(embedded.root)
    one = run.to_parquet(embedded.root.parent / "one")
    other = run.to_parquet(embedded.root.parent / "other", engine="ray", workers=2)
    for path in one.rglob("*.parquet"):
        assert path.read_bytes() == (other / path.relative_to(one)).read_bytes()


def test_a_connected_ray_is_used_as_it_is_and_left_alone() -> None:
    """Whoever started it ends it."""
    with RayPool(pool_jobs.square, 2) as pool:
        assert list(pool.map([[2], [3]])) == [[4], [9]]
    assert ray.is_initialized()


def test_a_cluster_is_found_at_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of addresses takes a real Ray for one."""
    address = ray.get_runtime_context().gcs_address
    check_address(address)
    asked: dict[str, Any] = {}
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: asked.update(options))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with RayPool(pool_jobs.square, 1, address=address):
        assert asked["address"] == address


def test_what_ray_itself_cannot_do_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody answers at the address, and Ray does not get along with it."""
    address = ray.get_runtime_context().gcs_address
    monkeypatch.setattr(ray, "is_initialized", lambda: False)

    def refuses(**options: Any) -> None:
        raise ConnectionError(f"another version at {options['address']}")

    monkeypatch.setattr(ray, "init", refuses)
    with pytest.raises(EngineUnavailableError, match=f"no Ray at {address}: another version"):
        list(map_chunks(pool_jobs.square, [[1]], Plan("ray", 1, address), lost=lost))
