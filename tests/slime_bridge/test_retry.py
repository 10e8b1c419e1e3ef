from __future__ import annotations

import asyncio
import logging
import random

import anyio
import pytest

from slime_bridge.errors import SubmitRejectedError, TransportError
from slime_bridge.retry import Fuse, RetryPolicy, call_with_retry
from tests.slime_bridge.loops import run_virtual


def _error(text: str = "refused", **fields: object) -> TransportError:
    return TransportError(text, **fields)  # type: ignore[arg-type]


def _virtual_fuse(**options: object) -> Fuse:
    return Fuse(clock=anyio.current_time, **options)  # type: ignore[arg-type]


class TestRetryPolicy:
    def test_full_jitter_spreads_over_the_whole_interval(self) -> None:
        """Waits are uniform from zero to the exponential bound: nobody returns in step with the others."""
        policy = RetryPolicy(initial=1.0, factor=2.0, max_delay=6.0)
        rng = random.Random(0)
        for failures, bound in [(1, 1.0), (2, 2.0), (3, 4.0), (4, 6.0), (50, 6.0)]:
            waits = [policy.delay(failures, rng) for _ in range(500)]
            assert min(waits) < 0.05 * bound
            assert 0.95 * bound < max(waits) <= bound
            assert abs(sum(waits) / 500 - bound / 2) < 0.1 * bound

    def test_same_seed_same_waits(self) -> None:
        """With an injected generator the waits can be reproduced."""
        policy = RetryPolicy()
        first = [policy.delay(n, random.Random(7)) for n in range(1, 9)]
        assert first == [policy.delay(n, random.Random(7)) for n in range(1, 9)]

    def test_any_number_of_failures_has_a_wait(self) -> None:
        """A year of failures does not overflow the exponent."""
        assert 0.0 <= RetryPolicy().delay(10**9, random.Random(1)) <= RetryPolicy().max_delay

    @pytest.mark.parametrize(
        "options",
        [
            {"initial": 0.0},
            {"factor": 0.5},
            {"max_delay": -1.0},
            {"max_attempts": 0},
            {"initial": float("nan")},
        ],
    )
    def test_impossible_policy_is_refused(self, options: dict[str, float]) -> None:
        """A policy that cannot work is an error where it is written."""
        with pytest.raises(ValueError, match="max_attempts"):
            RetryPolicy(**options)  # type: ignore[arg-type]


class TestFuse:
    def test_opens_after_consecutive_failures_only(self) -> None:
        """One answer in between shows that the server is there."""
        fuse = Fuse(threshold=3)
        for _ in range(10):
            fuse.record_failure(_error())
            fuse.record_failure(_error())
            fuse.record_success()
        assert not fuse.is_open
        assert fuse.opened_count == 0
        for _ in range(3):
            fuse.record_failure(_error())
        assert fuse.is_open
        assert fuse.opened_count == 1

    def test_since_is_the_first_failure_of_the_outage(self) -> None:
        """The outage began when the first of its requests failed, not when it was noticed."""
        now = [100.0]
        fuse = Fuse(threshold=2, clock=lambda: now[0])
        fuse.record_failure(_error("first"))
        now[0] = 104.0
        fuse.record_failure(_error("second"))
        assert fuse.since == 100.0
        assert str(fuse.last_error) == "second"
        now[0] = 110.0
        assert fuse.outage_seconds() == 10.0
        fuse.record_success()
        assert fuse.since is None
        assert fuse.outage_seconds() == 0.0
        assert str(fuse.last_error) == "second"

    def test_one_warning_per_outage(self, caplog: pytest.LogCaptureFixture) -> None:
        """A hundred failing requests are one line in the log, and the recovery another."""
        fuse = Fuse(threshold=3)
        with caplog.at_level(logging.DEBUG):
            for _ in range(2):
                for n in range(100):
                    fuse.record_failure(_error(f"no answer {n}"))
                fuse.record_success()
        assert [record.levelno for record in caplog.records] == [logging.WARNING] * 4
        assert "no answer 2" in caplog.messages[0]
        assert "answers again" in caplog.messages[1]

    def test_failure_of_a_request_older_than_the_last_answer_is_no_news(self) -> None:
        """Slow requests that time out after the server came back do not open the fuse again."""
        now = [0.0]
        fuse = Fuse(threshold=1, clock=lambda: now[0])
        now[0] = 5.0
        fuse.record_success()
        fuse.record_failure(_error(), started=4.0)
        assert not fuse.is_open
        fuse.record_failure(_error(), started=5.5)
        assert fuse.is_open
        assert fuse.since == 5.5

    def test_listener_hears_of_each_change(self) -> None:
        """Journal and metrics learn when an outage begins and ends."""
        seen: list[bool] = []
        fuse = Fuse(threshold=1, on_change=lambda fuse: seen.append(fuse.is_open))
        fuse.record_success()
        fuse.record_failure(_error())
        fuse.record_failure(_error())
        fuse.record_success()
        fuse.record_success()
        assert seen == [True, False]

    def test_open_fuse_lets_a_few_probes_through_however_many_wait(self) -> None:
        """Two hundred groups at a dead server send two requests a second together, not two hundred."""

        async def main() -> None:
            fuse = _virtual_fuse(threshold=1, probe_interval=0.5)
            fuse.record_failure(_error())
            admitted: list[float] = []

            async def group() -> None:
                while True:
                    await fuse.admit()
                    admitted.append(anyio.current_time())
                    fuse.record_failure(_error())

            with anyio.move_on_after(10.2):
                async with anyio.create_task_group() as tasks:
                    for _ in range(200):
                        tasks.start_soon(group)
            assert admitted == pytest.approx([0.5 * n for n in range(1, 21)])
            assert fuse.probe_count == 20

        run_virtual(main())

    def test_all_waiters_go_on_when_the_fuse_closes(self) -> None:
        """Nobody sleeps out a backoff of its own after the server has come back."""

        async def main() -> None:
            fuse = _virtual_fuse(threshold=1, probe_interval=0.5)
            fuse.record_failure(_error())
            admitted: list[float] = []

            async def group() -> None:
                await fuse.admit()
                admitted.append(anyio.current_time())

            async with anyio.create_task_group() as tasks:
                for _ in range(100):
                    tasks.start_soon(group)
                await anyio.sleep(1.75)
                assert len(admitted) == 3
                fuse.record_success()
            assert admitted[3:] == [1.75] * 97

        run_virtual(main())

    def test_cancelled_waiter_leaves_the_line(self) -> None:
        """A group that gives up while it waits does not block those behind it."""

        async def main() -> None:
            fuse = _virtual_fuse(threshold=1, probe_interval=1.0)
            fuse.record_failure(_error())
            first = asyncio.ensure_future(fuse.admit())
            second = asyncio.ensure_future(fuse.admit())
            await anyio.sleep(0.25)
            first.cancel()
            await asyncio.wait([first])
            assert first.cancelled()
            await second
            assert anyio.current_time() == pytest.approx(1.0)

        run_virtual(main())

    @pytest.mark.parametrize("options", [{"threshold": 0}, {"probe_interval": 0.0}])
    def test_impossible_fuse_is_refused(self, options: dict[str, float]) -> None:
        """A fuse that never closes or never opens is an error where it is written."""
        with pytest.raises(ValueError, match="fuse"):
            Fuse(**options)  # type: ignore[arg-type]


class _Operation:
    """Fails a number of times, then returns; remembers when it was called."""

    def __init__(self, fuse: Fuse, failures: int, **fields: object) -> None:
        self.fuse = fuse
        self.failures = failures
        self.fields = fields
        self.calls: list[float] = []

    async def __call__(self) -> str:
        await self.fuse.admit()
        self.calls.append(anyio.current_time())
        if len(self.calls) <= self.failures:
            error = _error(f"failure {len(self.calls)}", **self.fields)
            self.fuse.record_failure(error)
            raise error
        self.fuse.record_success()
        return "done"


class TestCallWithRetry:
    def test_returns_after_failures_with_the_waits_of_the_policy(self) -> None:
        """Each failure is followed by the policy's wait, and reported before it."""

        async def main() -> None:
            policy = RetryPolicy(initial=1.0, factor=2.0, max_delay=60.0)
            fuse = _virtual_fuse(threshold=100)
            operation = _Operation(fuse, failures=4)
            told: list[tuple[int, float, str]] = []
            result = await call_with_retry(
                operation,
                policy=policy,
                rng=random.Random(3),
                fuse=fuse,
                on_retry=lambda n, wait, exc: told.append((n, wait, str(exc))),
            )
            assert result == "done"
            rng = random.Random(3)
            waits = [policy.delay(n, rng) for n in (1, 2, 3, 4)]
            assert told == [(n, waits[n - 1], f"failure {n}") for n in (1, 2, 3, 4)]
            gaps = [
                later - sooner for sooner, later in zip(operation.calls, operation.calls[1:], strict=False)
            ]
            assert gaps == pytest.approx(waits)

        run_virtual(main())

    def test_gives_up_after_the_last_try(self) -> None:
        """Tries are bounded, and the last failure is the one raised."""

        async def main() -> None:
            fuse = _virtual_fuse(threshold=100)
            operation = _Operation(fuse, failures=1000)
            with pytest.raises(TransportError, match="failure 4"):
                await call_with_retry(
                    operation, policy=RetryPolicy(max_attempts=4), rng=random.Random(0), fuse=fuse
                )
            assert len(operation.calls) == 4

        run_virtual(main())

    def test_outage_uses_up_no_tries(self) -> None:
        """A server away for an hour says nothing against the request, which is sent when it is back."""

        async def main() -> None:
            fuse = _virtual_fuse(threshold=3, probe_interval=0.5)
            operation = _Operation(fuse, failures=7200)
            result = await call_with_retry(
                operation, policy=RetryPolicy(max_attempts=4), rng=random.Random(0), fuse=fuse
            )
            assert result == "done"
            # During the outage the fuse alone sets the pace: the last probe was half a second before.
            assert operation.calls[-1] - operation.calls[-2] == pytest.approx(0.5)

        run_virtual(main())

    def test_other_errors_are_never_repeated(self) -> None:
        """A refusal is final."""

        async def main() -> None:
            calls = 0

            async def operation() -> None:
                nonlocal calls
                calls += 1
                raise SubmitRejectedError("no", status_code=422)

            with pytest.raises(SubmitRejectedError):
                await call_with_retry(operation, policy=RetryPolicy(), rng=random.Random(0), fuse=Fuse())
            assert calls == 1

        run_virtual(main())

    @pytest.mark.parametrize(("asked", "waited"), [(3.0, 3.0), (600.0, 10.0)])
    def test_wait_that_the_server_asks_for_is_kept_within_bounds(self, asked: float, waited: float) -> None:
        """`Retry-After` is honoured up to the policy's longest wait."""

        async def main() -> None:
            fuse = _virtual_fuse(threshold=100)
            operation = _Operation(fuse, failures=1, retry_after=asked)
            await call_with_retry(operation, policy=RetryPolicy(initial=0.1), rng=random.Random(0), fuse=fuse)
            assert operation.calls[1] == pytest.approx(waited)

        run_virtual(main())
