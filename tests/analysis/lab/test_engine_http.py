"""The engine's HTTP surface over real sockets: SGLang's and OpenAI's forms, control, clients that leave."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from analysis.lab.engine import Engine, GenerationRequest, SamplingParams
from analysis.lab.engine.weights import load_weights
from analysis.lab.processes import ChildProcess, free_port
from analysis.lab.task_shelf import ShelfTask
from tests.analysis.lab.engine_peers import serve_engine, small_checkpoint, worst_error

CHAT = {"messages": [{"role": "user", "content": 'How many boxes are on shelf "B"?'}], "max_tokens": 12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_checkpoint(tmp_path_factory.mktemp("engine"), seed=0)


@pytest.fixture
def engine(folder: Path) -> Iterator[Engine]:
    with Engine(folder, seed=0) as engine:
        yield engine


@pytest.fixture
def client(engine: Engine) -> Iterator[httpx.Client]:
    with serve_engine(engine) as url, httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def shared_engine(folder: Path) -> Iterator[Engine]:
    with Engine(folder, seed=0) as engine:
        yield engine


@pytest.fixture(scope="module")
def shared_client(shared_engine: Engine) -> Iterator[httpx.Client]:
    with (
        serve_engine(shared_engine) as url,
        httpx.Client(base_url=url, trust_env=False, timeout=60) as client,
    ):
        yield client


class SharedServer:
    """Tests that change nothing in the engine use one for all."""

    @pytest.fixture
    def engine(self, shared_engine: Engine) -> Engine:
        return shared_engine

    @pytest.fixture
    def client(self, shared_client: httpx.Client) -> httpx.Client:
        return shared_client


def check_exact(engine: Engine, prompt: list[int], pairs: list[list[Any]], temperature: float = 1.0) -> None:
    """The reported pairs [logprob, id, ...] equal a teacher-forced pass."""
    request = GenerationRequest(prompt, SamplingParams(temperature=temperature))
    request.output_ids = [pair[1] for pair in pairs]
    request.output_logprobs = [pair[0] for pair in pairs]
    assert worst_error(load_weights(engine.folder), [request]) < 1e-4


class TestGenerate(SharedServer):
    """``/generate``: tokens in, tokens out."""

    def test_ids_in_ids_out(self, client: httpx.Client, engine: Engine) -> None:
        """The answer has SGLang's form, its logprobs are exact, and the text is that of its tokens."""
        answer = client.post(
            "/generate",
            json={
                "input_ids": [1, 336, 201],
                "sampling_params": {"max_new_tokens": 9, "temperature": 0.7, "ignore_eos": True},
                "return_logprob": True,
                "rid": "mine",
                "some_future_key": {"x": 1},
            },
        ).json()
        info = answer["meta_info"]
        assert set(answer) == {"text", "output_ids", "meta_info"}
        assert len(answer["output_ids"]) == info["completion_tokens"] == 9
        assert [pair[1] for pair in info["output_token_logprobs"]] == answer["output_ids"]
        assert all(pair[2] is None for pair in info["output_token_logprobs"])
        check_exact(engine, [1, 336, 201], info["output_token_logprobs"], 0.7)
        assert (info["id"], info["prompt_tokens"], info["weight_version"]) == ("mine", 3, "default")
        assert info["finish_reason"] == {"type": "length", "length": 9}
        assert "weight_versions" not in info
        assert answer["text"] == engine.tokenizer.decode(answer["output_ids"], skip_special_tokens=True)

    def test_text_in_and_logprobs_only_when_asked(self, client: httpx.Client) -> None:
        """Text is tokenised as it stands; without return_logprob the arrays are absent."""
        body = {"text": "<|im_start|>user\n", "sampling_params": {"max_new_tokens": 1}}
        info = client.post("/generate", json=body).json()["meta_info"]
        assert info["prompt_tokens"] == 3
        assert "output_token_logprobs" not in info

    def test_batches_and_several_answers_keep_their_order(self, client: httpx.Client) -> None:
        """A list of prompts and n answers each come back as one list, prompt by prompt."""
        answers = client.post(
            "/generate",
            json={
                "input_ids": [[1, 2], [3, 4, 5]],
                "sampling_params": [{"max_new_tokens": 2, "n": 2}, {"max_new_tokens": 3}],
                "rid": ["a", "b"],
                "return_logprob": [False, True],
            },
        ).json()
        assert [answer["meta_info"]["id"] for answer in answers] == ["a_0", "a_1", "b"]
        assert [answer["index"] for answer in answers] == [0, 1, 2]
        assert [answer["meta_info"]["prompt_tokens"] for answer in answers] == [2, 2, 3]
        assert ["output_token_logprobs" in answer["meta_info"] for answer in answers] == [False, False, True]

    def test_prompt_and_top_logprobs_with_texts(self, client: httpx.Client, engine: Engine) -> None:
        """logprob_start_len gives prompt logprobs, top_logprobs_num alternatives, texts on demand."""
        info = client.post(
            "/generate",
            json={
                "input_ids": [1, 336, 201, 7],
                "sampling_params": {"max_new_tokens": 2},
                "return_logprob": True,
                "logprob_start_len": 0,
                "top_logprobs_num": 2,
                "return_text_in_logprobs": True,
            },
        ).json()["meta_info"]
        first, *rest = info["input_token_logprobs"]
        assert first == [None, 1, "<|im_start|>"]
        assert [pair[1] for pair in rest] == [336, 201, 7]
        check_exact(engine, [1], rest)
        assert [len(top) for top in info["output_top_logprobs"]] == [2, 2]

    def test_stop_is_trimmed_from_the_text_only(self, client: httpx.Client) -> None:
        """The tokens are complete whatever the text shows, and no_stop_trim shows it."""
        free = {"max_new_tokens": 6, "temperature": 0.0, "ignore_eos": True, "skip_special_tokens": False}
        whole = client.post("/generate", json={"input_ids": [5], "sampling_params": free}).json()
        last = whole["output_ids"][-1]
        stop_at = {**free, "ignore_eos": False, "stop_token_ids": [last]}
        cut = client.post("/generate", json={"input_ids": [5], "sampling_params": stop_at}).json()
        count = len(cut["output_ids"])
        assert cut["output_ids"] == whole["output_ids"][:count]
        shown = client.post(
            "/generate", json={"input_ids": [5], "sampling_params": {**stop_at, "no_stop_trim": True}}
        ).json()
        assert shown["output_ids"] == cut["output_ids"]
        assert shown["text"].startswith(cut["text"])
        assert len(shown["text"]) > len(cut["text"])

    def test_streaming_sends_the_answer_so_far(self, client: httpx.Client) -> None:
        """Each event repeats what was sampled; the last one is the whole answer, then comes the end mark."""
        body = {
            "input_ids": [5, 6],
            "sampling_params": {"max_new_tokens": 8, "ignore_eos": True},
            "return_logprob": True,
            "stream": True,
        }
        with client.stream("POST", "/generate", json=body) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            events = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
        assert events.pop() == "[DONE]"
        chunks = [json.loads(event) for event in events]
        for earlier, later in zip(chunks, chunks[1:], strict=False):
            assert later["output_ids"][: len(earlier["output_ids"])] == earlier["output_ids"]
        last = chunks[-1]["meta_info"]
        assert last["finish_reason"] == {"type": "length", "length": 8}
        assert len(last["output_token_logprobs"]) == 8
        assert all(chunk["meta_info"]["finish_reason"] is None for chunk in chunks[:-1])

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            (b"{", "not valid JSON"),
            (b"[1]", "must be a JSON object"),
            (b"{}", "exactly one of text and input_ids"),
            (b'{"text": "a", "input_ids": [1]}', "exactly one of"),
            (b'{"input_ids": []}', "empty"),
            (b'{"input_ids": "abc"}', "list of token ids"),
            (b'{"input_ids": [1.5]}', "list of token ids"),
            (b'{"input_ids": [true]}', "list of token ids"),
            (b'{"input_ids": [[1], 2]}', "list of token ids"),
            (b'{"text": 3}', "must be a string"),
            (b'{"input_ids": [448]}', "between 0 and 447"),
            (b'{"input_ids": [1], "sampling_params": 3}', "must be an object"),
            (b'{"input_ids": [1], "sampling_params": {"temprature": 1}}', "did you mean"),
            (b'{"input_ids": [1], "stream": "yes"}', "true or false"),
            (b'{"input_ids": [1], "lora_path": "x"}', "lora_path is not supported"),
            (b'{"input_ids": [1], "rid": 3}', "rid must be"),
            (b'{"input_ids": [[1], [2]], "rid": ["a"]}', "1 entries for 2 prompts"),
            (b'{"input_ids": [1], "return_logprob": true, "logprob_start_len": 1}', "within the prompt"),
            (b'{"input_ids": [1], "return_logprob": true, "top_logprobs_num": -1}', "at least 0"),
        ],
    )
    def test_bad_bodies_get_400_with_the_reason(
        self, client: httpx.Client, body: bytes, message: str
    ) -> None:
        """Every refusal is a 400 with an error object, and the engine goes on serving."""
        answer = client.post("/generate", content=body)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert message in error["message"]
        assert (error["type"], error["code"]) == ("BadRequestError", 400)

    def test_too_long_prompts_get_400(self, client: httpx.Client) -> None:
        """The numbers are in the message; streaming requests are refused the same way, before any event."""
        for stream in (False, True):
            body = {"input_ids": [1] * 1024, "stream": stream}
            answer = client.post("/generate", json=body)
            assert answer.status_code == 400
            assert "1024" in answer.json()["error"]["message"]


class TestChat(SharedServer):
    """``/v1/chat/completions``: everything that a gateway reads, asked for or not."""

    def test_logprobs_bring_the_ids_unasked(self, client: httpx.Client, engine: Engine) -> None:
        """Routers drop the keys that ask for ids: with logprobs alone, all forms are there and agree."""
        answer = client.post(
            "/v1/chat/completions", json={**CHAT, "logprobs": True, "temperature": 0.8}
        ).json()
        (choice,) = answer["choices"]
        prompt = engine.tokenizer.apply_chat_template(
            CHAT["messages"], add_generation_prompt=True, return_dict=False
        )
        assert choice["prompt_token_ids"] == choice["input_token_ids"] == answer["prompt_token_ids"] == prompt
        ids = choice["token_ids"]
        assert ids == choice["response_token_ids"]
        content = choice["logprobs"]["content"]
        assert [entry["token_id"] for entry in content] == ids
        pairs = choice["meta_info"]["output_token_logprobs"]
        assert [pair[:2] for pair in pairs] == [[entry["logprob"], entry["token_id"]] for entry in content]
        check_exact(engine, prompt, pairs, 0.8)
        assert all(
            set(entry) == {"token", "token_id", "logprob", "bytes", "top_logprobs"} for entry in content
        )
        assert answer["usage"]["total_tokens"] == len(prompt) + len(ids)
        assert answer["metadata"] == {"weight_version": "default"}
        assert choice["meta_info"]["weight_version"] == "default"
        assert answer["object"] == "chat.completion"

    def test_natural_stop_keeps_the_end_of_turn(self, client: httpx.Client, engine: Engine) -> None:
        """The end-of-turn token is in every list, and not in the content."""
        # One of 448 tokens ends the turn: side by side it is met soon.
        body = {**CHAT, "max_tokens": 300, "n": 16, "logprobs": True}
        choices = client.post("/v1/chat/completions", json=body).json()["choices"]
        choice = next(choice for choice in choices if choice["finish_reason"] == "stop")
        assert choice["matched_stop"] == choice["token_ids"][-1] == engine.tokenizer.eos_token_id
        assert "<|im_end|>" not in choice["message"]["content"]

    def test_without_logprobs_the_answer_is_plain(self, client: httpx.Client) -> None:
        """Ids come without logprobs only when asked for by name."""
        (plain,) = client.post("/v1/chat/completions", json=CHAT).json()["choices"]
        assert not {"token_ids", "prompt_token_ids", "meta_info"} & set(plain)
        assert plain["logprobs"] is None
        body = {**CHAT, "return_token_ids": True, "return_meta_info": True}
        (asked,) = client.post("/v1/chat/completions", json=body).json()["choices"]
        assert {"token_ids", "prompt_token_ids", "meta_info"} <= set(asked)

    def test_conversations_are_prefix_stable_and_cached(self, client: httpx.Client) -> None:
        """The next turn's prompt begins with this one's, and the engine reuses it."""
        messages = list(CHAT["messages"])  # type: ignore[call-overload]
        tools = ShelfTask().tools
        body = {"messages": messages, "tools": tools, "max_tokens": 12, "logprobs": True}
        (first,) = client.post("/v1/chat/completions", json=body).json()["choices"]
        messages += [first["message"], {"role": "tool", "content": "7", "tool_call_id": "x"}]
        (second,) = client.post("/v1/chat/completions", json=body).json()["choices"]
        length = len(first["prompt_token_ids"])
        assert second["prompt_token_ids"][:length] == first["prompt_token_ids"]
        assert second["meta_info"]["cached_tokens"] >= length

    def test_what_agents_send_along_is_tolerated(self, client: httpx.Client) -> None:
        """Unknown keys, neutral values, parts instead of strings and template variables do no harm."""
        body = {
            "model": "whatever",
            "messages": [
                {
                    "role": "system",
                    "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief"}],
                },
                {"role": "user", "content": "hi", "name": "joe"},
            ],
            "max_completion_tokens": 3,
            "store": True,
            "reasoning_effort": "low",
            "metadata": {"a": 1},
            "frequency_penalty": 0,
            "response_format": {"type": "text"},
            "tool_choice": "auto",
            "chat_template_kwargs": {
                "enable_thinking": False,
                "chat_template": "{{ 1 / 0 }}",
                "tokenize": False,
            },
            "seed": 7,
            "user": "u",
        }
        answers = [client.post("/v1/chat/completions", json=body).json() for _ in range(2)]
        assert answers[0]["model"] == "whatever"
        assert answers[0]["usage"]["completion_tokens"] <= 3
        assert answers[0]["choices"] == answers[1]["choices"]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"messages": None}, "messages must be a list"),
            ({"messages": []}, "at least one"),
            ({"messages": ["hi"]}, "messages[0]"),
            ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
            ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "text parts only"),
            ({"tools": ["find"]}, "tools must be"),
            ({"tool_choice": "required"}, "cannot be forced"),
            ({"response_format": {"type": "json_object"}}, "response_format"),
            ({"logit_bias": {"5": 10}}, "logit_bias is not supported"),
            ({"chat_template_kwargs": 3}, "chat_template_kwargs"),
            ({"input_ids": ["a"]}, "token ids"),
            ({"logprobs": True, "top_logprobs": -2}, "top logprobs"),
            ({"max_tokens": 5000}, "exceed the context"),
        ],
    )
    def test_bad_requests_name_the_field(
        self, client: httpx.Client, change: dict[str, Any], message: str
    ) -> None:
        """Each refusal is a 400 that says which field."""
        answer = client.post("/v1/chat/completions", json={**CHAT, **change})
        assert answer.status_code == 400
        assert message in answer.json()["error"]["message"]

    def test_direct_clients_may_give_ids(self, client: httpx.Client) -> None:
        """Input ids replace the rendering of the messages."""
        body = {**CHAT, "input_ids": [9, 8, 7], "logprobs": True, "rid": "r1", "n": 2}
        answer = client.post("/v1/chat/completions", json=body).json()
        assert [choice["prompt_token_ids"] for choice in answer["choices"]] == [[9, 8, 7]] * 2
        assert answer["usage"]["prompt_tokens"] == 3

    def test_streaming_adds_up_to_the_answer(self, client: httpx.Client) -> None:
        """Role first, then text, then the reason with the ids, usage when asked for, and the end mark."""
        body = {
            **CHAT,
            "temperature": 0.0,
            "logprobs": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
        assert lines.pop() == "[DONE]"
        opening, *chunks, usage = [json.loads(line) for line in lines]
        assert opening["choices"][0]["delta"]["role"] == "assistant"
        whole = client.post("/v1/chat/completions", json={**body, "stream": False}).json()
        (expected,) = whole["choices"]
        choices = [chunk["choices"][0] for chunk in chunks]
        assert "".join(choice["delta"]["content"] for choice in choices) == expected["message"]["content"]
        assert [entry["token_id"] for c in choices for entry in c["logprobs"]["content"]] == expected[
            "token_ids"
        ]
        assert choices[-1]["token_ids"] == expected["token_ids"]
        assert choices[-1]["finish_reason"] == expected["finish_reason"]
        assert usage["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


class TestCompletions(SharedServer):
    """``/v1/completions``."""

    def test_prompts_of_every_form(self, client: httpx.Client) -> None:
        """A string, ids, or lists of either; one choice per prompt, ids on request."""
        for prompt, count in (("hi", 1), ([1, 2], 1), (["a", "b"], 2), ([[1], [2], [3]], 3)):
            body = {"prompt": prompt, "max_tokens": 2, "return_token_ids": True}
            answer = client.post("/v1/completions", json=body).json()
            assert [choice["index"] for choice in answer["choices"]] == list(range(count))
            assert all(len(choice["token_ids"]) <= 2 for choice in answer["choices"])
        assert answer["object"] == "text_completion"

    def test_logprobs_are_parallel_lists(self, client: httpx.Client, engine: Engine) -> None:
        """Tokens, logprobs, alternatives and offsets have one length, and the logprobs are exact."""
        body = {"prompt": [1, 2, 3], "max_tokens": 5, "logprobs": 2, "ignore_eos": True}
        (choice,) = client.post("/v1/completions", json=body).json()["choices"]
        lists = choice["logprobs"]
        assert {len(lists[name]) for name in lists} == {5}
        check_exact(
            engine, [1, 2, 3], list(map(list, zip(lists["token_logprobs"], choice["token_ids"], strict=True)))
        )
        assert lists["text_offset"][0] == 0

    def test_streaming_and_refusals(self, client: httpx.Client) -> None:
        """Text streams in pieces; what is not supported is refused by name."""
        body = {"prompt": "hi", "max_tokens": 4, "stream": True, "temperature": 0}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
        text = "".join(json.loads(line)["choices"][0]["text"] for line in lines[:-1])
        whole = client.post("/v1/completions", json={**body, "stream": False}).json()
        assert text == whole["choices"][0]["text"]
        for bad in ({"prompt": 3}, {"prompt": []}, {"prompt": [None]}, {"prompt": "x", "echo": True}):
            assert client.post("/v1/completions", json=bad).status_code == 400


class TestInformation:
    """Probes and numbers."""

    def test_probes(self, client: httpx.Client, engine: Engine) -> None:
        """A router's probes answer 200, also while paused; a stopped engine answers 503."""
        for path in ("/health", "/health_generate"):
            answer = client.get(path)
            assert (answer.status_code, answer.content) == (200, b"")
        engine.pause()
        assert client.get("/health_generate").status_code == 200
        engine.stop()
        assert client.get("/health").status_code == 503
        assert client.get("/health_generate").status_code == 503
        answer = client.post("/generate", json={"input_ids": [1]})
        assert answer.status_code == 503
        assert "was stopped" in answer.json()["error"]["message"]

    @pytest.mark.parametrize("prefix", ["", "get_"])
    def test_descriptions(self, client: httpx.Client, folder: Path, prefix: str) -> None:
        """Both spellings of model and server information, with the keys that routers and trainers read."""
        model = client.get(f"/{prefix}model_info").json()
        assert model["model_path"] == model["tokenizer_path"] == str(folder)
        assert (model["served_model_name"], model["weight_version"]) == ("tiny", "default")
        assert model["is_generation"] is True
        server = client.get(f"/{prefix}server_info").json()
        assert server["context_length"] == 1024
        assert server["internal_states"][0]["num_running_reqs"] == 0
        (entry,) = client.get("/v1/models").json()["data"]
        assert entry["id"] == "tiny"

    def test_load_and_metrics_count(self, client: httpx.Client) -> None:
        """Counters are exact whole numbers, gauges show what waits."""
        client.post(
            "/generate",
            json={"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}},
        )
        text = client.get("/metrics").text
        assert 'sglang:generation_tokens_total{model_name="tiny"} 3\n' in text
        assert 'sglang:prompt_tokens_total{model_name="tiny"} 2\n' in text
        (load,) = client.get("/v1/loads", params={"include": "core"}).json()["loads"]
        assert (load["num_running_reqs"], load["num_waiting_reqs"], load["num_total_reqs"]) == (0, 0, 0)

    def test_unknown_routes_and_methods(self, client: httpx.Client) -> None:
        """Errors of the framework have the same form as ours."""
        assert client.get("/nope").json()["error"]["code"] == 404
        assert client.put("/generate", json={}).json()["error"]["code"] == 405


class TestControl:
    """What a trainer calls around a weight update."""

    def test_trainer_sequence(self, client: httpx.Client, folder: Path) -> None:
        """Pause with an empty body, flush, update, continue: what was sent meanwhile runs on new weights."""
        assert client.post("/pause_generation").status_code == 200
        answers: list[dict[str, Any]] = []
        body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 2}}
        late = threading.Thread(target=lambda: answers.append(client.post("/generate", json=body).json()))
        late.start()
        while client.get("/v1/loads").json()["loads"][0]["num_waiting_reqs"] == 0:
            time.sleep(0.01)
        assert client.get("/flush_cache").status_code == 200
        updated = client.post(
            "/update_weights_from_disk", json={"model_path": str(folder), "weight_version": "7"}
        ).json()
        assert updated["success"] is True
        assert updated["num_paused_requests"] == 0
        assert not answers
        assert client.post("/continue_generation").status_code == 200
        late.join(20)
        assert answers[0]["meta_info"]["weight_version"] == "7"
        assert client.get("/model_info").json()["weight_version"] == "7"

    @pytest.mark.parametrize("mode", ["abort", "retract", "in_place"])
    def test_pause_modes_in_mid_generation(
        self, client: httpx.Client, engine: Engine, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Abort returns partial output with status 200; the other modes go on under two named versions."""
        other = small_checkpoint(tmp_path, seed=1)
        # Slow until the update is done, so that the request cannot end before it.
        updated_event, step = threading.Event(), engine._batch.step
        monkeypatch.setattr(engine._batch, "step", lambda: (updated_event.wait(0.05), step())[1])
        body = {
            "input_ids": [1],
            "sampling_params": {"max_new_tokens": 300, "ignore_eos": True},
            "stream": True,
            "return_logprob": True,
        }
        with client.stream("POST", "/generate", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            assert client.post("/pause_generation", json={"mode": mode}).status_code == 200
            updated = client.post(
                "/update_weights_from_disk", json={"model_path": str(other), "weight_version": "1"}
            ).json()
            assert updated["success"] is True
            assert updated["num_paused_requests"] == (1 if mode == "in_place" else 0)
            updated_event.set()
            client.post("/continue_generation")
            events = [line.removeprefix("data: ") for line in lines if line]
        info = json.loads(events[-2])["meta_info"]
        assert len(info["output_token_logprobs"]) == info["completion_tokens"]
        if mode == "abort":
            assert info["finish_reason"]["type"] == "abort"
            assert info["completion_tokens"] < 300
        else:
            assert info["completion_tokens"] == 300
            first, second = info["weight_versions"]
            assert (first["version"], second["version"]) == ("default", "1")
            assert first["end"] == second["start"]
            assert second["end"] == 300

    def test_abort_by_name_and_all(self, client: httpx.Client) -> None:
        """An aborted request answers 200 with what it has; unknown names do nothing."""
        client.post("/pause_generation", json={"mode": "in_place"})
        ends: dict[str, str] = {}

        def ask(rid: str) -> None:
            answer = client.post("/generate", json={"input_ids": [1], "rid": rid}).json()
            ends[rid] = answer["meta_info"]["finish_reason"]["type"]

        threads = [threading.Thread(target=ask, args=(rid,)) for rid in ("a", "b", "c")]
        for thread in threads:
            thread.start()
        while client.get("/v1/loads").json()["loads"][0]["num_waiting_reqs"] < 3:
            time.sleep(0.01)
        assert client.post("/abort_request", json={"rid": "nobody"}).status_code == 200
        client.post("/abort_request", json={"rid": "b"})
        threads[1].join(20)
        assert ends == {"b": "abort"}
        client.post("/abort_request", json={"abort_all": True})
        for thread in threads:
            thread.join(20)
        assert ends == {"a": "abort", "b": "abort", "c": "abort"}
        assert client.post("/abort_request", json={}).status_code == 400

    def test_refusals_leave_everything_as_it_was(self, client: httpx.Client, tmp_path: Path) -> None:
        """A bad path or mode is a 400 with a message; version and weights stay."""
        answer = client.post(
            "/update_weights_from_disk", json={"model_path": str(tmp_path), "weight_version": "9"}
        )
        assert answer.status_code == 400
        assert answer.json()["success"] is False
        assert "safetensors" in answer.json()["message"]
        assert client.post("/update_weights_from_disk", json={}).status_code == 400
        assert client.post("/pause_generation", json={"mode": "gently"}).status_code == 400
        assert client.get("/model_info").json()["weight_version"] == "default"

    def test_renaming_the_weights(self, client: httpx.Client) -> None:
        """The version can be set without new weights, as a number too."""
        answer = client.post("/update_weight_version", json={"new_version": 5}).json()
        assert (answer["success"], answer["new_version"]) == (True, "5")
        assert client.get("/model_info").json()["weight_version"] == "5"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_place(client: httpx.Client, engine: Engine, stream: bool) -> None:
    """A closed connection aborts the request: nothing is computed for nobody."""
    url = client.base_url
    body = json.dumps(
        {
            "input_ids": [1],
            "sampling_params": {"max_new_tokens": 1000, "ignore_eos": True},
            "stream": stream,
        }
    ).encode()
    engine.pause("in_place")
    with socket.create_connection((url.host, url.port or 80), timeout=10) as raw:
        head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        raw.sendall(head.encode() + body)
        while engine.load().waiting == 0:
            time.sleep(0.01)
    while engine.load().waiting:
        time.sleep(0.01)
    assert engine.load().counters["aborted"] == 1


@pytest.mark.lab
@pytest.mark.timeout(180)
def test_the_process_serves_and_ends_in_order(folder: Path, tmp_path: Path) -> None:
    """``python -m analysis.lab.engine`` gets ready, answers, and ends with 0 on SIGTERM, paused or not."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    argv = [sys.executable, "-m", "analysis.lab.engine", "--checkpoint", str(folder), "--port", str(port)]
    process = ChildProcess(
        argv, name="engine", log_path=tmp_path / "engine.log", ready_url=f"{url}/health", stop_timeout=30
    )
    with process, httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        process.wait_ready(120)
        assert client.post("/generate", json={"input_ids": [1]}).status_code == 200
        client.post("/pause_generation", json={"mode": "in_place"})
        waiting = threading.Thread(target=lambda: httpx.post(f"{url}/generate", json={"input_ids": [1]}))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading, "excepthook", lambda args: None)
            waiting.start()
            while client.get("/v1/loads").json()["loads"][0]["num_waiting_reqs"] == 0:
                time.sleep(0.02)
            assert process.stop() == 0, process.log_tail()
            waiting.join(20)


@pytest.mark.lab
@pytest.mark.timeout(180)
def test_the_process_says_why_it_cannot_serve(tmp_path: Path) -> None:
    """A folder without a checkpoint ends the process with status 1 and the reason in its log."""
    argv = [
        sys.executable,
        "-m",
        "analysis.lab.engine",
        "--checkpoint",
        str(tmp_path),
        "--port",
        str(free_port()),
    ]
    with ChildProcess(argv, name="engine", log_path=tmp_path / "engine.log") as process:
        assert process.wait(60) == 1
        assert "cannot serve" in process.log_tail()
