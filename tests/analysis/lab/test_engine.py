"""The engine without HTTP: reported logprobs are the sampling ones, whatever stops, pauses or changes."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from analysis.errors import EngineStoppedError, RequestError, WeightUpdateError
from analysis.lab.checkpoint import (
    CheckpointSpec,
    create_checkpoint,
    load_config,
    load_parameters,
    save_parameters,
)
from analysis.lab.engine import BatchLimits, Engine, GenerationRequest, SamplingParams
from analysis.lab.engine.kv_rows import KVRows
from analysis.lab.engine.sampling import sample_tokens, seeded_uniform
from analysis.lab.engine.weights import eos_token_ids, load_weights
from analysis.lab.model import token_logprobs
from tests.analysis.lab.engine_peers import (
    VOCAB,
    make_batch,
    random_ids,
    run_to_end,
    small_checkpoint,
    teacher_forced_error,
    worst_error,
)

EXACT = 1e-4
EVEN = frozenset(range(0, VOCAB, 2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_checkpoint(tmp_path_factory.mktemp("engine"), seed=0)


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_checkpoint(tmp_path_factory.mktemp("engine"), seed=1)


@pytest.fixture
def engine(folder: Path) -> Iterator[Engine]:
    with Engine(folder, seed=0) as engine:
        yield engine


def ask(ids: list[int], *, max_new_tokens: int | None = 12, **params: Any) -> GenerationRequest:
    """A request of its own bound, for use with a batch."""
    request = GenerationRequest(ids, SamplingParams(max_new_tokens=max_new_tokens, **params))
    request.max_output = 1024 - len(ids) if max_new_tokens is None else max_new_tokens
    return request


class TestLogprobs:
    """Every reported logprob equals the teacher-forced one within 1e-4."""

    @pytest.mark.parametrize(
        "params",
        [
            {},
            {"temperature": 0.7},
            {"temperature": 1.5},
            {"temperature": 0.0},
            {"temperature": 0.7, "top_p": 0.8},
            {"top_k": 5},
            {"min_p": 0.05},
        ],
        ids=lambda params: str(params) or "default",
    )
    def test_concurrent_random_prompts(self, engine: Engine, params: dict[str, Any]) -> None:
        """Many prompts of all lengths at once, joining and leaving in mid-flight."""
        rng = random.Random(str(params))
        requests = [
            GenerationRequest(
                random_ids(rng, rng.randint(1, 120)),
                SamplingParams(max_new_tokens=rng.randint(1, 40), **params),
            )
            for _ in range(60)
        ]
        engine.generate(requests)
        assert worst_error(load_weights(engine.folder), requests) < EXACT
        assert all(request.finish is not None for request in requests)

    def test_mixed_parameters_in_one_batch(self, engine: Engine) -> None:
        """Rows of one batch do not leak into each other: each has its own temperature and filters."""
        rng = random.Random(1)
        choices = [
            {},
            {"temperature": 0.5},
            {"temperature": 0.0},
            {"top_k": 1},
            {"top_p": 0.5, "temperature": 2.0},
        ]
        requests = [ask(random_ids(rng, 30), **choices[number % len(choices)]) for number in range(60)]
        engine.generate(requests)
        assert worst_error(load_weights(engine.folder), requests) < EXACT

    def test_conversations_reuse_their_earlier_turns(self, engine: Engine) -> None:
        """A third turn computes only what is new, and its logprobs are those of a fresh pass."""
        rng = random.Random(2)
        requests = [ask(random_ids(rng, 40), ignore_eos=True) for _ in range(20)]
        engine.generate(requests)
        for _ in range(2):
            requests = [ask(request.tokens + random_ids(rng, 8), ignore_eos=True) for request in requests]
            engine.generate(requests)
            assert worst_error(load_weights(engine.folder), requests) < EXACT
            # All but the new tokens and the last sampled one, whose key was never needed.
            assert {len(r.prompt_ids) - r.cached_tokens for r in requests} == {9}

    def test_a_group_shares_one_prompt(self, engine: Engine) -> None:
        """A group computes its prompt once, also for late members, and each samples on its own."""
        prompt = random_ids(random.Random(3), 60)
        requests = [ask(prompt) for _ in range(40)]
        engine.generate(requests)
        later = ask(prompt)
        engine.generate([later])
        assert worst_error(load_weights(engine.folder), [*requests, later]) < EXACT
        assert sum(request.cached_tokens == 0 for request in requests) == 1
        assert later.cached_tokens == 59
        assert len({tuple(request.output_ids) for request in requests}) > 1

    def test_sharing_can_be_switched_off(self, folder: Path) -> None:
        """Without sharing nothing is reused, and results are just as exact."""
        prompt = random_ids(random.Random(4), 30)
        batch = make_batch(folder, share_prefixes=False)
        requests = [ask(prompt) for _ in range(6)]
        for request in requests:
            batch.add(request)
        run_to_end(batch)
        assert batch.counters.cached_tokens == 0
        assert worst_error(batch.weights, requests) < EXACT

    @pytest.mark.parametrize("start", [0, 1, 7, 49])
    def test_prompt_logprobs_from_any_position(self, engine: Engine, start: int) -> None:
        """Prompt logprobs equal a fresh pass also when part of the prompt was cached before."""
        prompt = random_ids(random.Random(5), 50)
        request = GenerationRequest(prompt, SamplingParams(max_new_tokens=2), logprob_start_len=start)
        engine.generate([ask(prompt)])
        engine.generate([request])
        with torch.inference_mode():
            expected = token_logprobs(load_weights(engine.folder), torch.tensor([prompt]))[0].tolist()
        reported = request.input_logprobs
        assert len(reported) == 50 - start
        if start == 0:
            assert reported.pop(0) is None
        assert np.allclose(np.array(reported, dtype=float), expected[max(start, 1) - 1 :], atol=EXACT)

    def test_alternatives_are_sorted_and_contain_the_choice(self, engine: Engine) -> None:
        """Top logprobs come from the same distribution as the choice, best first."""
        request = GenerationRequest(
            [5, 6, 7], SamplingParams(max_new_tokens=6, temperature=0.0), top_logprobs=3
        )
        engine.generate([request])
        for token, logprob, top in zip(
            request.output_ids, request.output_logprobs, request.output_top, strict=True
        ):
            assert [value for value, _ in top] == sorted((value for value, _ in top), reverse=True)
            assert top[0] == (pytest.approx(logprob, abs=1e-6), token)
            assert len(top) == 3

    def test_long_prompts_grow_the_rows(self, engine: Engine) -> None:
        """Sequences longer than the first allocation are served, up to the whole context."""
        rng = random.Random(6)
        requests = [ask(random_ids(rng, length)) for length in (10, 255, 256, 257, 700, 1012)]
        engine.generate(requests)
        assert worst_error(load_weights(engine.folder), requests) < EXACT


class TestStopping:
    """A request ends for one reason, and its tokens are complete."""

    def one(self, batch: Any, request: GenerationRequest) -> GenerationRequest:
        batch.add(request)
        run_to_end(batch)
        return request

    def test_end_of_turn_is_kept_and_named(self, folder: Path) -> None:
        """The token that ends a turn is among the sampled ones, with its logprob."""
        batch = make_batch(folder, eos=EVEN)
        requests = [self.one(batch, ask([number], max_new_tokens=None)) for number in range(5)]
        for request in requests:
            last = request.output_ids[-1]
            assert [token for token in request.output_ids if token in EVEN] == [last]
            assert len(request.output_ids) == len(request.output_logprobs)
            assert request.progress().finish_reason() == {"type": "stop", "matched": last}

    def test_length(self, folder: Path) -> None:
        """The bound is exact, and ignore_eos runs over the end of turns."""
        batch = make_batch(folder, eos=EVEN)
        request = self.one(batch, ask([3], max_new_tokens=50, ignore_eos=True))
        assert len(request.output_ids) == 50
        assert EVEN & set(request.output_ids)
        assert request.progress().finish_reason() == {"type": "length", "length": 50}

    def test_stop_token_ids(self, folder: Path) -> None:
        """Any of the client's stop tokens ends generation, unless ignore_eos is set, as in SGLang."""
        every = frozenset(range(VOCAB))
        request = self.one(make_batch(folder), ask([3], stop_token_ids=every))
        assert len(request.output_ids) == 1
        ignoring = self.one(make_batch(folder), ask([3], stop_token_ids=every, ignore_eos=True))
        assert len(ignoring.output_ids) == 12

    def test_stop_string_across_tokens(self, folder: Path) -> None:
        """A stop string is found although no single token holds it; all tokens up to it are kept."""
        free = self.one(make_batch(folder), ask([3], ignore_eos=True, max_new_tokens=8))
        word = "".join(chr(token) for token in free.output_ids[3:5])
        stopped = self.one(
            make_batch(folder), ask([3], ignore_eos=True, max_new_tokens=8, stop=("never", word))
        )
        assert stopped.output_ids == free.output_ids[:5]
        assert stopped.finish is not None
        assert stopped.finish.matched == word

    def test_nothing_to_generate(self, folder: Path) -> None:
        """max_new_tokens 0 asks for the prompt's work only."""
        request = self.one(make_batch(folder), ask([3, 4], max_new_tokens=0))
        assert request.output_ids == []
        assert request.progress().finish_reason() == {"type": "length", "length": 0}

    def test_seeded_requests_repeat_whatever_runs_beside_them(self, folder: Path) -> None:
        """A sampling seed fixes the answer; another answer number or seed gives another one."""
        batch = make_batch(folder)
        first = self.one(batch, ask([9, 9], sampling_seed=5))
        crowd = [ask(random_ids(random.Random(7), 20)) for _ in range(10)]
        for request in crowd:
            batch.add(request)
        again = self.one(batch, ask([9, 9], sampling_seed=5))
        assert again.output_ids == first.output_ids
        other = self.one(batch, ask([9, 9], sampling_seed=6))
        assert other.output_ids != first.output_ids
        assert seeded_uniform(5, 0, 0) != seeded_uniform(5, 1, 0) != seeded_uniform(5, 0, 1)

    def test_a_model_that_gives_no_numbers_fails_its_requests_only(self, folder: Path) -> None:
        """Logits that are not finite end a request as failed; a later weight update heals the engine."""
        batch = make_batch(folder)
        good = batch.weights
        broken = {name: tensor * math.nan for name, tensor in load_parameters(folder).items()}
        batch.replace_weights(type(good).fuse(broken, good.config), "bad")
        failed = [self.one(batch, ask([number, *range(20)])) for number in range(3)]
        assert all(request.finish is not None and request.finish.failed for request in failed)
        batch.replace_weights(good, "good")
        # Side by side, the short one's row is read beyond its end, where what failed may have left its mark.
        healed = [ask([1, 2, 3]), ask(list(range(20)))]
        for request in healed:
            batch.add(request)
        run_to_end(batch)
        assert worst_error(good, healed) < EXACT


class TestPausing:
    """What a pause and a weight update do to requests in flight."""

    def running(self, folder: Path, *, steps: int = 5, count: int = 4) -> tuple[Any, list[GenerationRequest]]:
        batch = make_batch(folder)
        rng = random.Random(8)
        requests = [ask(random_ids(rng, 20), max_new_tokens=30, ignore_eos=True) for _ in range(count)]
        for request in requests:
            batch.add(request)
        with torch.inference_mode():
            for _ in range(steps):
                batch.step()
        return batch, requests

    def test_abort_gives_what_there_is(self, folder: Path) -> None:
        """Partial output survives an abort, and each of its logprobs holds."""
        batch, requests = self.running(folder)
        waiting = ask([1, 2])
        batch.add(waiting)
        ended = batch.abort(lambda request: True, "generation was paused")
        assert ended == [*requests, waiting]
        assert batch.idle
        for request in requests:
            assert request.progress().finish_reason() == {"type": "abort", "message": "generation was paused"}
            assert len(request.output_ids) == 6
        assert waiting.output_ids == []
        assert worst_error(batch.weights, requests) < EXACT

    def test_abort_of_one_leaves_the_others(self, folder: Path) -> None:
        """Rows close their gap: those that stay go on exactly."""
        batch, requests = self.running(folder)
        batch.abort(lambda request: request is requests[1], "gone")
        run_to_end(batch)
        assert [len(request.output_ids) for request in requests] == [30, 6, 30, 30]
        assert worst_error(batch.weights, requests) < EXACT

    def test_in_place_keeps_keys_and_marks_versions(self, folder: Path, other_folder: Path) -> None:
        """After an update in place each token names its weights; the first ones are exact under the old."""
        batch, requests = self.running(folder)
        old = batch.weights
        batch.replace_weights(load_weights(other_folder), "1")
        run_to_end(batch)
        for request in requests:
            assert [(s.version, s.start, s.end) for s in request.spans] == [("0", 0, 6), ("1", 6, 30)]
            assert request.weight_version == "1"
            before = GenerationRequest(request.prompt_ids, request.params)
            before.output_ids, before.output_logprobs = request.output_ids[:6], request.output_logprobs[:6]
            assert teacher_forced_error(old, before) < EXACT
            assert teacher_forced_error(batch.weights, request, start=6) > EXACT

    def test_nothing_of_the_old_weights_is_shared(self, folder: Path, other_folder: Path) -> None:
        """A new request never reuses keys of old weights, of finished or of still running requests."""
        batch, requests = self.running(folder)
        finished = ask(random_ids(random.Random(99), 20), max_new_tokens=1)
        batch.add(finished)
        with torch.inference_mode():
            batch.step()
        assert finished.finish is not None
        assert len(batch.running) == 4
        batch.replace_weights(load_weights(other_folder), "1")
        follower, again = ask(requests[0].tokens), ask(finished.prompt_ids)
        for request in (follower, again):
            batch.add(request)
        run_to_end(batch)
        assert follower.cached_tokens == again.cached_tokens == 0
        assert worst_error(batch.weights, [follower, again]) < EXACT

    def test_retract_recomputes_everything_under_new_weights(self, folder: Path, other_folder: Path) -> None:
        """After a retract, tokens sampled later are exact under a fresh pass of the new weights."""
        batch, requests = self.running(folder)
        batch.retract()
        assert (batch.running, len(batch.waiting)) == ([], 4)
        batch.replace_weights(load_weights(other_folder), "1")
        run_to_end(batch)
        for request in requests:
            assert [(s.version, s.start, s.end) for s in request.spans] == [("0", 0, 6), ("1", 6, 30)]
            assert teacher_forced_error(batch.weights, request, start=6) < EXACT

    def test_retracted_requests_keep_their_place_and_their_seeded_draws(self, folder: Path) -> None:
        """Retracting without an update changes nothing that a seeded request samples."""
        plain, interrupted = make_batch(folder), make_batch(folder)
        for batch, retract in ((plain, False), (interrupted, True)):
            for number in range(3):
                batch.add(ask([number], sampling_seed=number, ignore_eos=True, max_new_tokens=9))
            requests = list(batch.waiting)
            with torch.inference_mode():
                batch.step()
            late = ask([99])
            batch.add(late)
            if retract:
                batch.retract()
                assert list(batch.waiting) == [*requests, late]
            run_to_end(batch)
            if not retract:
                expected = [request.output_ids for request in requests]
        assert [request.output_ids for request in requests] == expected


class TestEngine:
    """The thread around the batch: control calls, refusals and ends."""

    def test_pause_holds_everything_and_resume_goes_on(self, engine: Engine) -> None:
        """Requests sent while paused wait; weights replaced meanwhile are the ones that answer."""
        engine.pause()
        request = ask([4, 5])
        done = threading.Event()
        request.on_event = lambda _: done.set()
        engine.submit(request)
        assert engine.load().waiting == 1
        assert engine.update_weights(engine.folder, version="7") == 0
        assert engine.flush_cache()
        assert not done.is_set()
        engine.resume()
        assert done.wait(20)
        assert request.weight_version == "7"
        assert engine.load().weight_version == "7"

    def test_pause_aborts_in_flight_by_default(self, engine: Engine) -> None:
        """The default mode ends a running request with partial output."""
        request, started, done = (
            ask([4, 5], max_new_tokens=None, ignore_eos=True),
            threading.Event(),
            threading.Event(),
        )
        request.stream = True

        def watch(touched: GenerationRequest) -> None:
            started.set()
            if touched.finish is not None:
                done.set()

        request.on_event = watch
        engine.submit(request)
        assert started.wait(20)
        running = engine.pause()
        assert done.wait(20)
        if running:
            assert request.finish is not None
            assert request.finish.kind == "abort"
            assert 0 < len(request.output_ids) < 1022
        assert not engine.load().running

    def test_update_under_load_is_exact_on_both_sides(self, engine: Engine, other_folder: Path) -> None:
        """Weights swapped in mid-flight: every request ends, and each token belongs to a named version."""
        rng = random.Random(9)
        old = load_weights(engine.folder)
        done = threading.Semaphore(0)
        seen = threading.Event()
        requests = [ask(random_ids(rng, 20), max_new_tokens=60, ignore_eos=True) for _ in range(30)]

        def watch(touched: GenerationRequest) -> None:
            seen.set()
            if touched.finish is not None:
                done.release()

        for request in requests:
            request.stream = True
            request.on_event = watch
            engine.submit(request)
        assert seen.wait(20)
        engine.update_weights(other_folder, version="1")
        for _ in requests:
            assert done.acquire(timeout=30)
        assert {span.version for request in requests for span in request.spans} <= {"default", "1"}
        for request in requests:
            assert [span.start for span in request.spans[1:]] == [span.end for span in request.spans[:-1]]
            assert request.spans[-1].end == len(request.output_ids) == 60
            head = GenerationRequest(request.prompt_ids, request.params)
            end = request.spans[0].end if request.spans[0].version == "default" else 0
            head.output_ids, head.output_logprobs = request.output_ids[:end], request.output_logprobs[:end]
            assert teacher_forced_error(old, head) < EXACT
        after = [ask(request.tokens[:30]) for request in requests]
        engine.generate(after)
        assert worst_error(load_weights(other_folder), after) < EXACT

    @pytest.mark.parametrize("kind", ["missing", "foreign", "torn", "not-finite"])
    def test_bad_weights_change_nothing(self, engine: Engine, tmp_path: Path, kind: str) -> None:
        """A failed update leaves weights, version and cache as they were."""
        target = tmp_path / "update"
        if kind == "foreign":
            create_checkpoint(target, seed=0, spec=CheckpointSpec(hidden_size=32))
        elif kind != "missing":
            create_checkpoint(target, seed=0)
        if kind == "torn":
            (target / "model.safetensors").write_bytes(b"\0" * 20)
        if kind == "not-finite":
            parameters = load_parameters(target)
            parameters["model.norm.weight"][3] = math.inf
            save_parameters(target, parameters)
        with pytest.raises(WeightUpdateError):
            engine.update_weights(target, version="9")
        assert engine.weight_version == "default"
        request = ask([1, 2, 3])
        engine.generate([request])
        assert worst_error(load_weights(engine.folder), [request]) < EXACT

    @pytest.mark.parametrize(
        ("ids", "params", "message"),
        [
            ([], {}, "empty"),
            ([VOCAB], {}, "between 0 and 447"),
            ([-1], {}, "between 0 and 447"),
            ([1] * 1024, {"max_new_tokens": None}, "no room"),
            ([1] * 1000, {"max_new_tokens": 25}, "exceed the context"),
        ],
    )
    def test_impossible_requests_are_refused(
        self, engine: Engine, ids: list[int], params: dict[str, Any], message: str
    ) -> None:
        """What can never be served is refused at once, with the numbers."""
        with pytest.raises(RequestError, match=message):
            engine.submit(GenerationRequest(ids, SamplingParams(**params)))

    def test_the_last_place_of_the_context_is_used(self, engine: Engine) -> None:
        """A prompt of 1023 tokens still gets one."""
        request = GenerationRequest([1] * 1023, SamplingParams(max_new_tokens=None))
        engine.generate([request])
        assert len(request.output_ids) == 1

    def test_duplicate_names_do_not_lose_requests(self, engine: Engine) -> None:
        """Two requests under one rid both end; aborting the name ends both."""
        requests = [GenerationRequest([7], SamplingParams(max_new_tokens=4), rid="same") for _ in range(5)]
        engine.generate(requests)
        assert all(request.finish is not None for request in requests)
        engine.pause("in_place")
        done = threading.Semaphore(0)
        for request in (late := [GenerationRequest([7], SamplingParams(), rid="same") for _ in range(2)]):
            request.on_event = lambda _: done.release()
            engine.submit(request)
        assert engine.abort("other") == engine.abort("sam") == engine.abort("") == 0
        assert engine.abort("same") == 2
        assert all(request.finish is not None and request.finish.kind == "abort" for request in late)

    def test_flush_refuses_while_something_runs(self, folder: Path) -> None:
        """Keys in use are not forgotten under a running request."""
        with Engine(folder) as engine:
            request = ask([4, 5], max_new_tokens=None, ignore_eos=True)
            engine.pause("in_place")
            engine.submit(request)
            assert engine.flush_cache()
            started = threading.Event()
            request.stream = True
            request.on_event = lambda _: started.set()
            engine.resume()
            assert started.wait(20)
            if engine.pause("in_place"):
                assert not engine.flush_cache()

    def test_stopping_ends_requests_and_refuses_new_ones(self, folder: Path) -> None:
        """Nobody waits for an engine that has ended, whatever state it was in."""
        engine = Engine(folder).start()
        engine.pause("in_place")
        request, done = ask([1]), threading.Event()
        request.on_event = lambda _: done.set()
        engine.submit(request)
        engine.stop()
        engine.stop()
        assert done.wait(20)
        assert request.finish is not None
        assert request.finish.failed
        assert not engine.alive
        for call in (lambda: engine.submit(ask([1])), engine.load, engine.pause):
            with pytest.raises(EngineStoppedError, match="was stopped"):
                call()

    def test_a_failing_step_reaches_everybody(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        """A bug in a step ends the engine loudly: waiting requests fail, later calls say why."""

        def explode() -> list[GenerationRequest]:
            raise ZeroDivisionError("step")

        monkeypatch.setattr(engine._batch, "step", explode)
        request = ask([1])
        engine.generate([request])
        assert request.finish is not None
        assert request.finish.failed
        assert "ZeroDivisionError" in request.finish.message
        with pytest.raises(EngineStoppedError, match="ZeroDivisionError"):
            engine.load()

    def test_more_requests_than_places_all_end_in_order_of_arrival(self, folder: Path) -> None:
        """A queue longer than the batch is served first come, first served."""
        batch = make_batch(folder, max_running=4, max_retained=2, prefill_requests=3)
        requests = [ask([number, 5], max_new_tokens=5, ignore_eos=True) for number in range(20)]
        for request in requests:
            batch.add(request)
        with torch.inference_mode():
            while not batch.idle:
                batch.step()
                assert len(batch.running) <= 4
        begun = [request.first_token_at for request in requests]
        assert begun == sorted(begun)
        assert worst_error(batch.weights, requests) < EXACT
        assert batch.counters.generated_tokens == 100


class TestSampling:
    """The draw itself, against plain computations."""

    @hypothesis_settings(max_examples=60)
    @given(
        seed=st.integers(0, 10_000),
        temperature=st.sampled_from([0.3, 1.0, 2.5]),
        top_k=st.sampled_from([-1, 1, 3, 50]),
        top_p=st.sampled_from([0.1, 0.7, 1.0]),
        min_p=st.sampled_from([0.0, 0.2]),
        uniform=st.floats(0, 1, exclude_max=True),
    )
    def test_only_kept_tokens_are_drawn(
        self, seed: int, temperature: float, top_k: int, top_p: float, min_p: float, uniform: float
    ) -> None:
        """The drawn token passes every filter as a plain loop applies them, for any draw."""
        logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(seed)) * 3
        params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        sampled = sample_tokens(logits, [params], torch.tensor([uniform], dtype=torch.float64))
        probabilities = (logits[0] / temperature).softmax(-1).double().tolist()
        ranked = sorted(range(40), key=lambda token: -probabilities[token])
        kept, mass = [], 0.0
        for rank, token in enumerate(ranked):
            inside_k = top_k == -1 or rank < top_k
            inside_min = probabilities[token] >= min_p * probabilities[ranked[0]] - 1e-12
            if rank == 0 or (inside_k and inside_min and mass <= top_p + 1e-6):
                kept.append(token)
            mass += probabilities[token]
        assert sampled.ids[0] in kept
        assert sampled.logprobs[0] == pytest.approx(math.log(probabilities[sampled.ids[0]]), abs=1e-4)

    def test_draws_follow_the_distribution(self) -> None:
        """Evenly spaced draws hit each token in proportion to its probability."""
        logits = torch.tensor([[1.0, 0.0, -1.0, 2.0]]).expand(4000, 4)
        uniforms = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
        sampled = sample_tokens(logits, [SamplingParams()] * 4000, uniforms)
        shares = np.bincount(sampled.ids, minlength=4) / 4000
        assert np.allclose(shares, logits[0].softmax(-1), atol=5e-4)

    def test_extreme_logits_never_yield_an_impossible_token(self) -> None:
        """Probability zero is never drawn, not even by the largest draw; one-sided logits stay finite."""
        logits = torch.tensor([[0.0, -1e30, -1e30], [1e4, -1e4, 0.0], [-1e30, 0.0, -1e30]])
        for uniform in (0.0, 0.5, math.nextafter(1.0, 0.0)):
            draws = torch.full((3,), uniform, dtype=torch.float64)
            sampled = sample_tokens(logits, [SamplingParams()] * 3, draws)
            assert sampled.ids == [0, 0, 1]
            assert sampled.logprobs == [0.0, 0.0, 0.0]

    @pytest.mark.parametrize(
        ("raw", "message"),
        [
            ({"temprature": 1.0}, "did you mean 'temperature'"),
            ({"temperature": -1}, "between 0 and inf"),
            ({"temperature": math.nan}, "finite"),
            ({"temperature": "hot"}, "finite number"),
            ({"temperature": True}, "finite number"),
            ({"top_p": 0}, "above 0"),
            ({"top_p": 1.1}, "between 0 and 1"),
            ({"top_k": 0}, "-1"),
            ({"top_k": 2.5}, "whole number"),
            ({"min_p": 2}, "between 0 and 1"),
            ({"max_new_tokens": -1}, "at least 0"),
            ({"max_new_tokens": 10**30, "n": 0}, "1 to 128"),
            ({"stop": 3}, "string or a list"),
            ({"stop_token_ids": ["a"]}, "whole number"),
            ({"stop_token_ids": 3}, "list of token ids"),
            ({"ignore_eos": "yes"}, "true or false"),
            ({"sampling_seed": 1.5}, "whole number"),
            ({"frequency_penalty": 0.5}, "not supported"),
            ({"json_schema": "{}"}, "not supported"),
        ],
    )
    def test_bad_parameters_are_named(self, raw: dict[str, Any], message: str) -> None:
        """Each refusal says which parameter and what would do; nothing is silently ignored."""
        with pytest.raises(RequestError, match=message):
            SamplingParams.from_mapping(raw)

    def test_neutral_and_null_values_are_accepted(self) -> None:
        """Clients and routers send defaults along: they mean nothing."""
        raw = {"frequency_penalty": 0.0, "repetition_penalty": 1.0, "regex": None, "top_p": None, "stop": "x"}
        assert SamplingParams.from_mapping(raw) == SamplingParams(stop=("x",))

    def test_end_tokens_are_collected_from_every_file(self, folder: Path, tmp_path: Path) -> None:
        """A list of end tokens in generation_config.json counts as well as the tokenizer's."""
        (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
        (tmp_path / "config.json").write_text('{"eos_token_id": null}')
        assert eos_token_ids(tmp_path, 2) == {2, 5, 6}
        assert eos_token_ids(folder, None) == {2}


class TestRows:
    """Which beginnings a row can lend, and for how long."""

    def rows(self, folder: Path, **sizes: int) -> KVRows:
        return KVRows(load_config(folder), **{"max_running": 2, "max_retained": 2, **sizes})  # type: ignore[arg-type]

    def hold(self, rows: KVRows, row: int, tokens: list[int]) -> None:
        rows.clear(row)
        rows.record(row, 0, tokens)
        rows.keys[:, row, :, : len(tokens)] = torch.tensor(tokens, dtype=torch.float32).view(1, 1, -1, 1)

    def lent(self, rows: KVRows, tokens: list[int]) -> list[float]:
        """Keys of the longest beginning that is found for these tokens."""
        row, length = rows.longest_prefix(np.array(tokens, dtype=np.int32))
        return rows.keys[0, row, 0, :length, 0].tolist()

    def test_longest_beginning_wins(self, folder: Path) -> None:
        """The row that holds most of the prompt lends it; none at all lends nothing."""
        rows = self.rows(folder)
        self.hold(rows, 0, [1, 2])
        self.hold(rows, 1, [1, 2, 3, 9])
        assert self.lent(rows, [1, 2, 3, 4, 5]) == [1.0, 2.0, 3.0]
        assert self.lent(rows, [7, 1, 2]) == []
        assert self.lent(rows, []) == []

    def test_what_a_row_held_before_is_not_lent(self, folder: Path) -> None:
        """A shorter sequence in a row that held a longer one does not bring the old end back."""
        rows = self.rows(folder, max_retained=1)
        self.hold(rows, 0, [1, 2, 3, 4, 5])
        rows.retain(0)
        self.hold(rows, 0, [1, 2])
        rows.retain(0)
        rows.clear(0)
        assert self.lent(rows, [1, 2, 3, 4, 5]) == [1.0, 2.0]

    def test_the_longest_unused_is_replaced(self, folder: Path) -> None:
        """Lending a row renews it; the other one makes room."""
        rows = self.rows(folder)
        for tokens in ([1, 1], [2, 2]):
            self.hold(rows, 0, tokens)
            rows.retain(0)
        rows.clear(0)
        assert self.lent(rows, [1, 1]) == [1.0, 1.0]
        self.hold(rows, 0, [3, 3])
        rows.retain(0)
        rows.clear(0)
        assert [self.lent(rows, [token, token]) != [] for token in (1, 2, 3)] == [True, False, True]
        assert rows.retained_rows == 2
        rows.forget_retained()
        assert self.lent(rows, [1, 1]) == []
        assert rows.retained_rows == 0

    def test_growing_keeps_what_is_held(self, folder: Path) -> None:
        """Room for longer sequences comes without losing a key, and ends at the model's context."""
        rows = self.rows(folder)
        self.hold(rows, 1, [1, 2, 3])
        rows.ensure_capacity(300)
        assert rows.capacity == 512
        assert self.lent(rows, [1, 2, 3]) == [1.0, 2.0, 3.0]
        rows.ensure_capacity(1024)
        assert rows.capacity == 1024

    def test_private_rows_lend_nothing_even_later(self, folder: Path) -> None:
        """A row computed by replaced weights is neither lent while it runs nor kept when it ends."""
        rows = self.rows(folder)
        self.hold(rows, 0, [1, 2])
        rows.make_private(1)
        rows.record(0, 2, [3])
        assert self.lent(rows, [1, 2, 3]) == []
        rows.retain(0)
        assert rows.retained_rows == 0


def test_limits_bound_the_work_of_one_prefill(folder: Path) -> None:
    """A prefill takes as many long prompts as its token bound allows; no request is passed over for ever."""
    batch = make_batch(folder, prefill_tokens=100)
    rng = random.Random(10)
    requests = [ask(random_ids(rng, length), max_new_tokens=3) for length in (60, 60, 10, 10, 400)]
    for request in requests:
        batch.add(request)
    run_to_end(batch)
    assert batch.counters.prefills == 4
    assert worst_error(batch.weights, requests) < EXACT
    assert BatchLimits().prefill_tokens >= 1024
