"""``/v1/chat/completions``, ``/v1/completions`` and ``/v1/models``, with the token ids that training needs.

Routers drop the request keys that ask for token ids, but pass answers through. So an answer that carries
logprobs carries the ids too, unasked, under the names that SGLang, vLLM and gateways read: per choice
`prompt_token_ids` and `input_token_ids`, `token_ids` and `response_token_ids`, `logprobs.content[].token_id`,
and `meta_info.output_token_logprobs`. All output lists have the same length and hold the ending token.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from analysis.errors import RequestError
from analysis.lab.engine.openai_params import chat_prompt_ids, completion_prompts, sampling_params_of
from analysis.lab.engine.request import GenerationRequest, Progress
from analysis.lab.engine.sampling import SamplingParams
from analysis.lab.engine.serving import (
    Serving,
    event_stream,
    json_response,
    read_json_object,
    run_requests,
    stream_requests,
)
from analysis.lab.engine.text import meta_info, output_text, token_text

__all__ = ["openai_routes"]


def openai_routes(serving: Serving) -> APIRouter:
    """Build the router with the OpenAI-style endpoints."""
    router = APIRouter()

    @router.get("/v1/models")
    async def models() -> Response:
        entry = {
            "id": serving.model_name,
            "object": "model",
            "created": int(serving.started),
            "owned_by": "slime-bridge",
            "root": serving.model_name,
            "max_model_len": serving.engine.context_length,
        }
        return json_response({"object": "list", "data": [entry]})

    @router.post("/v1/chat/completions")
    async def chat(http: Request) -> Response:
        body = await read_json_object(http)
        ids = chat_prompt_ids(serving.engine.tokenizer, body)
        params = sampling_params_of(body, default_max_tokens=None)
        top = body.get("top_logprobs") if body.get("logprobs") is True else 0
        return await _answer(serving, http, body, _ChatForm(), [ids], params, top)

    @router.post("/v1/completions")
    async def complete(http: Request) -> Response:
        body = await read_json_object(http)
        if body.get("echo") or body.get("suffix"):
            raise RequestError("echo and suffix are not supported", param="echo")
        prompts = completion_prompts(serving.engine.tokenizer, body.get("prompt"))
        params = sampling_params_of(body, default_max_tokens=16)
        return await _answer(serving, http, body, _CompletionForm(), prompts, params, body.get("logprobs"))

    return router


async def _answer(
    serving: Serving,
    http: Request,
    body: dict[str, Any],
    form: _ChatForm | _CompletionForm,
    prompts: Sequence[list[int]],
    params: SamplingParams,
    top: Any,
) -> Response:
    top = 0 if top is None or top is False else int(top) if top is True else top
    if type(top) is not int or not 0 <= top <= serving.engine.config.vocab_size:
        raise RequestError("the number of top logprobs must be a whole number", param="logprobs")
    stream = body.get("stream") is True
    rid = body.get("rid")
    requests = [
        GenerationRequest(
            ids,
            replace(params, n=1),
            rid=rid if isinstance(rid, str) else "",
            answer=answer,
            top_logprobs=top,
            stream=stream,
        )
        for ids in prompts
        for answer in range(params.n)
    ]
    for request in requests:
        serving.engine.check(request)
    call = _Call(serving, body, form, requests)
    if stream:
        return event_stream(call.chunks(http))
    return json_response(call.complete(await run_requests(serving, http, requests)))


class _Call:
    """One OpenAI-style request on its way to its answer."""

    def __init__(
        self,
        serving: Serving,
        body: dict[str, Any],
        form: _ChatForm | _CompletionForm,
        requests: Sequence[GenerationRequest],
    ) -> None:
        self._serving = serving
        self._tokenizer = serving.engine.tokenizer
        self._form = form
        self._requests = requests
        self._logprobs = body.get("logprobs") not in (None, False)
        self._meta = self._logprobs or body.get("return_meta_info") is True
        self._prompt_ids = self._logprobs or bool(
            body.get("return_prompt_token_ids") or body.get("return_token_ids")
        )
        self._output_ids = self._logprobs or body.get("return_token_ids") is True
        options = body.get("stream_options")
        self._usage = isinstance(options, dict) and options.get("include_usage") is True
        self._model = body.get("model") if isinstance(body.get("model"), str) else serving.model_name
        self._id = f"{form.id_prefix}-{uuid.uuid4().hex}"
        self._created = int(time.time())

    def complete(self, ends: Sequence[Progress]) -> dict[str, Any]:
        """Build the whole answer."""
        choices = []
        for index, end in enumerate(ends):
            choice = {"index": index, **self._form.body(output_text(self._tokenizer, end))}
            choice["logprobs"] = self._form.logprobs(self._tokenizer, end, 0) if self._logprobs else None
            choices.append(choice | self._ending(end) | self._extras(end))
        answer = self._frame(self._form.object_name, choices)
        answer["usage"] = self._count(ends)
        answer["metadata"] = {"weight_version": ends[0].request.weight_version}
        if self._prompt_ids:
            answer["prompt_token_ids"] = ends[0].request.prompt_ids
        return answer

    async def chunks(self, http: Request) -> AsyncIterator[bytes]:
        """Give the answer piece by piece."""
        sent_text = [""] * len(self._requests)
        sent_tokens = [0] * len(self._requests)
        number = {id(request): index for index, request in enumerate(self._requests)}
        ends: dict[int, Progress] = {}
        for index in number.values():
            if self._form.opening is not None:
                opening = {"index": index, **self._form.opening, "finish_reason": None}
                yield msgspec.json.encode(self._frame(self._form.chunk_name, [opening]))
        async for progress in stream_requests(self._serving, http, self._requests):
            index = number[id(progress.request)]
            text = output_text(self._tokenizer, progress)
            # A stop string may show in part before it is recognised; what was sent cannot be taken back.
            delta = text[len(sent_text[index]) :]
            choice = {"index": index, **self._form.delta(delta), "finish_reason": None}
            if self._logprobs:
                choice["logprobs"] = self._form.logprobs(self._tokenizer, progress, sent_tokens[index])
            if progress.finish is not None:
                ends[index] = progress
                choice |= self._ending(progress) | self._extras(progress)
            sent_text[index] += delta
            sent_tokens[index] = progress.count
            yield msgspec.json.encode(self._frame(self._form.chunk_name, [choice]))
        if self._usage:
            last = self._frame(self._form.chunk_name, [])
            last["usage"] = self._count([ends[index] for index in sorted(ends)])
            yield msgspec.json.encode(last)

    def _frame(self, name: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": name,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }

    @staticmethod
    def _ending(progress: Progress) -> dict[str, Any]:
        finish = progress.finish
        assert finish is not None
        return {"finish_reason": finish.kind, "matched_stop": finish.matched}

    def _extras(self, progress: Progress) -> dict[str, Any]:
        request, extras = progress.request, {}
        if self._prompt_ids:
            extras["prompt_token_ids"] = extras["input_token_ids"] = request.prompt_ids
        if self._output_ids:
            extras["token_ids"] = extras["response_token_ids"] = request.output_ids[: progress.count]
        if self._meta:
            info = meta_info(self._tokenizer, progress, logprobs=self._logprobs)
            return {**extras, "meta_info": info}
        return dict(extras)

    @staticmethod
    def _count(ends: Sequence[Progress]) -> dict[str, Any]:
        prompts = {id(end.request.prompt_ids): end.request for end in ends}.values()
        prompt = sum(len(request.prompt_ids) for request in prompts)
        output = sum(end.count for end in ends)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": sum(request.cached_tokens for request in prompts)},
        }


@dataclass(frozen=True)
class _ChatForm:
    """How chat answers look."""

    id_prefix: str = "chatcmpl"
    object_name: str = "chat.completion"
    chunk_name: str = "chat.completion.chunk"

    @property
    def opening(self) -> dict[str, Any] | None:
        return {"delta": {"role": "assistant", "content": ""}}

    @staticmethod
    def body(text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text}}

    @staticmethod
    def delta(text: str) -> dict[str, Any]:
        return {"delta": {"content": text}}

    @staticmethod
    def logprobs(tokenizer: Any, progress: Progress, start: int) -> dict[str, Any]:
        """One entry per output token from `start` on."""

        def entry(token: int, logprob: float) -> dict[str, Any]:
            text = token_text(tokenizer, token)
            return {"token": text, "token_id": token, "logprob": logprob, "bytes": list(text.encode())}

        request = progress.request
        content = []
        for position in range(start, progress.count):
            item = entry(request.output_ids[position], request.output_logprobs[position])
            top = request.output_top[position] if request.top_logprobs else []
            item["top_logprobs"] = [entry(token, logprob) for logprob, token in top]
            content.append(item)
        return {"content": content}


@dataclass(frozen=True)
class _CompletionForm:
    """How text completions look."""

    id_prefix: str = "cmpl"
    object_name: str = "text_completion"
    chunk_name: str = "text_completion"

    @property
    def opening(self) -> dict[str, Any] | None:
        return None

    @staticmethod
    def body(text: str) -> dict[str, Any]:
        return {"text": text}

    delta = body

    @staticmethod
    def logprobs(tokenizer: Any, progress: Progress, start: int) -> dict[str, Any]:
        """Parallel lists over the output tokens from `start` on."""
        request = progress.request
        ids = request.output_ids[start : progress.count]
        texts = [token_text(tokenizer, token) for token in ids]
        tops = request.output_top[start : progress.count] if request.top_logprobs else []
        offset = sum(len(token_text(tokenizer, token)) for token in request.output_ids[:start])
        offsets = []
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        return {
            "tokens": texts,
            "token_logprobs": request.output_logprobs[start : progress.count],
            "top_logprobs": [{token_text(tokenizer, token): value for value, token in top} for top in tops],
            "text_offset": offsets,
        }
