"""The engine: one checkpoint, its batch, and everything that may be asked of them.

Requests may be submitted from any thread. Control calls (pause, weight update, abort, flush) run between two
steps, so that they never meet half a step. Knows token ids and a checkpoint folder; HTTP is
`analysis.lab.engine.app`'s.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from analysis.errors import EngineStoppedError, RequestError
from analysis.lab.checkpoint import load_tokenizer
from analysis.lab.engine.batch import Batch, BatchLimits
from analysis.lab.engine.loop import BatchLoop
from analysis.lab.engine.request import GenerationRequest
from analysis.lab.engine.weights import eos_token_ids, load_weights, reload_weights

__all__ = ["PAUSE_MODES", "Engine", "EngineLoad"]

PAUSE_MODES = ("abort", "retract", "in_place")


@dataclass(frozen=True)
class EngineLoad:
    """A look at the engine between two steps.

    Parameters
    ----------
    running, waiting
        Requests.
    tokens_held, token_room
        Tokens of running requests, and how many could be held at most.
    retained
        Finished requests whose work is kept for reuse.
    paused, weight_version
        State.
    counters
        Totals since the start, see `BatchCounters`.
    """

    running: int
    waiting: int
    tokens_held: int
    token_room: int
    retained: int
    paused: bool
    weight_version: str
    counters: dict[str, int]


class Engine:
    """Serves one checkpoint.

    Parameters
    ----------
    folder
        The checkpoint.
    limits
        Sizes of the batch.
    weight_version
        Name of the first weights.
    seed
        Of the draws of requests without their own; None takes it from the system.

    Attributes
    ----------
    folder
        Where the weights being served were loaded from.
    tokenizer
        The checkpoint's tokenizer.
    context_length
        Longest sequence, prompt and output, in tokens.

    Examples
    --------
    >>> with Engine(Path("checkpoint")) as engine:  # doctest: +SKIP
    ...     engine.generate([GenerationRequest([1, 2, 3], SamplingParams(max_new_tokens=8))])
    """

    def __init__(
        self,
        folder: Path,
        *,
        limits: BatchLimits | None = None,
        weight_version: str = "default",
        seed: int | None = None,
    ) -> None:
        self.folder = folder
        weights = load_weights(folder)
        # The batch must not refer to the engine: its hundred megabytes would wait for the garbage collector.
        self.tokenizer = tokenizer = load_tokenizer(folder)
        self.config = weights.config
        self.context_length = weights.config.max_positions
        self._batch = Batch(
            weights,
            version=weight_version,
            eos_ids=eos_token_ids(folder, self.tokenizer.eos_token_id),
            decode=lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False)),
            limits=limits,
            seed=seed,
        )
        self._loop = BatchLoop(self._batch)

    @property
    def weight_version(self) -> str:
        """Name of the weights that sample the next token."""
        return self._batch.version

    @property
    def limits(self) -> BatchLimits:
        """Sizes of the batch."""
        return self._batch.limits

    @property
    def paused(self) -> bool:
        """Whether sampling is suspended."""
        return self._loop.paused

    @property
    def alive(self) -> bool:
        """Whether the loop runs."""
        return self._loop.alive

    def start(self) -> Engine:
        """Start sampling."""
        self._loop.start()
        return self

    def stop(self) -> None:
        """End the loop; requests in flight are aborted. Harmless when repeated."""
        self._loop.stop()

    def __enter__(self) -> Engine:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def check(self, request: GenerationRequest) -> None:
        """Refuse a request that can never be served; set the bound on its output otherwise."""
        ids, context, vocabulary = request.prompt_ids, self.context_length, self.config.vocab_size
        if not ids:
            raise RequestError("the prompt is empty; at least one token is needed", param="input_ids")
        if min(ids) < 0 or max(ids) >= vocabulary:
            raise RequestError(f"token ids must lie between 0 and {vocabulary - 1}", param="input_ids")
        room = context - len(ids)
        if room < 1:
            raise RequestError(
                f"the prompt has {len(ids)} tokens; the context of {context} leaves no room for an answer",
                param="input_ids",
            )
        asked = request.params.max_new_tokens
        if asked is not None and asked > room:
            raise RequestError(
                f"prompt ({len(ids)}) and max_new_tokens ({asked}) exceed the context of {context} tokens",
                param="max_new_tokens",
            )
        request.max_output = room if asked is None else asked

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request; its `on_event` tells when it ends.

        Raises
        ------
        RequestError
            When it can never be served.
        EngineStoppedError
            When the loop has ended.
        """
        self.check(request)
        self._loop.submit(request)

    def generate(self, requests: Sequence[GenerationRequest], *, timeout: float = 60.0) -> None:
        """Submit requests and wait until all have ended, for use in-process.

        Raises
        ------
        TimeoutError
            After `timeout` seconds; the requests go on.
        """
        ended = threading.Semaphore(0)
        for request in requests:
            request.on_event = lambda touched: ended.release() if touched.finish is not None else None
            self.submit(request)
        deadline = time.monotonic() + timeout
        for _ in requests:
            if not ended.acquire(timeout=max(0.0, deadline - time.monotonic())):
                raise TimeoutError(f"not all of {len(requests)} requests ended within {timeout:g} s")

    def pause(self, mode: str = "abort") -> int:
        """Suspend sampling; return how many requests were running.

        Parameters
        ----------
        mode
            ``abort`` ends everything in flight with what it has; ``retract`` requeues what runs, to be
            computed anew; ``in_place`` leaves it where it is, keys and values included. Requests that arrive
            meanwhile wait.
        """
        if mode not in PAUSE_MODES:
            raise RequestError(f"mode must be one of {', '.join(PAUSE_MODES)}, not {mode!r}", param="mode")

        def suspend() -> int:
            running = len(self._batch.running)
            self._loop.paused = True
            if mode == "abort":
                self._loop.abort(_everything, "generation was paused")
            elif mode == "retract":
                self._batch.retract()
            return running

        return self._loop.call(suspend)

    def resume(self) -> None:
        """Go on sampling."""

        def go_on() -> None:
            self._loop.paused = False

        self._loop.call(go_on)

    def update_weights(self, folder: Path, *, version: str | None = None, abort_all: bool = False) -> int:
        """Serve new weights from the next step on; return how many requests were running.

        Parameters
        ----------
        folder
            Holds the new weights; read in the caller's thread, while sampling goes on.
        version
            Their name; None keeps the present one.
        abort_all
            End everything in flight first.

        Raises
        ------
        WeightUpdateError
            When they cannot be used; the present ones stay.
        """
        weights = reload_weights(folder, self.config)

        def swap() -> int:
            running = len(self._batch.running)
            if abort_all:
                self._loop.abort(_everything, "weights were updated")
            self._batch.replace_weights(weights, self._batch.version if version is None else version)
            self.folder = folder
            return running

        return self._loop.call(swap)

    def set_weight_version(self, version: str, *, abort_all: bool = True) -> None:
        """Rename the weights being served."""

        def rename() -> None:
            if abort_all:
                self._loop.abort(_everything, "the weight version was updated")
            self._batch.version = version

        self._loop.call(rename)

    def flush_cache(self) -> bool:
        """Forget what finished requests computed; False, and nothing done, while requests are in flight.

        Requests that wait for the end of a pause hold nothing and do not count.
        """

        def flush() -> bool:
            if self._batch.running or (self._batch.waiting and not self._loop.paused):
                return False
            self._batch.kv.forget_retained()
            return True

        return self._loop.call(flush)

    def abort(self, rid: str) -> int:
        """End all requests of this name with what they have; return their number."""
        return self._loop.call(lambda: self._loop.abort(lambda request: request.rid == rid, "aborted"))

    def abort_all(self) -> int:
        """End everything in flight with what it has; return the number."""
        return self._loop.call(lambda: self._loop.abort(_everything, "aborted"))

    def cancel(self, requests: Sequence[GenerationRequest], message: str) -> None:
        """End these very requests, whoever shares their name, without waiting for it."""
        wanted = set(map(id, requests))
        try:
            self._loop.post(lambda: self._loop.abort(lambda request: id(request) in wanted, message))
        except EngineStoppedError:
            # The end of the loop has ended them too.
            return

    def load(self) -> EngineLoad:
        """Look at the engine between two steps."""

        def look() -> EngineLoad:
            batch = self._batch
            return EngineLoad(
                running=len(batch.running),
                waiting=len(batch.waiting),
                tokens_held=sum(request.length for request in batch.running),
                token_room=batch.limits.max_running * self.context_length,
                retained=batch.kv.retained_rows,
                paused=self._loop.paused,
                weight_version=batch.version,
                counters=asdict(batch.counters),
            )

        return self._loop.call(look)


def _everything(request: GenerationRequest) -> bool:
    return True
