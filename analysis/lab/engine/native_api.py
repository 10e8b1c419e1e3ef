"""SGLang's own endpoint, ``POST /generate``: tokens in, tokens out.

This is where exact token ids come from. Top-level keys that are not listed in `analysis.lab.engine` are
ignored, since routers and newer clients send more than an engine needs; sampling parameters are checked
strictly.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from analysis.errors import RequestError
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
from analysis.lab.engine.text import meta_info, output_text

__all__ = ["native_routes"]

_UNSUPPORTED = (
    "audio_data",
    "custom_logit_processor",
    "image_data",
    "input_embeds",
    "lora_path",
    "return_hidden_states",
    "session_params",
    "token_ids_logprob",
    "video_data",
)


def native_routes(serving: Serving) -> APIRouter:
    """Build the router with ``/generate``."""
    router = APIRouter()

    @router.post("/generate")
    async def generate(http: Request) -> Response:
        call = _GenerateCall(serving, await read_json_object(http))
        if call.stream:
            for request in call.requests:
                serving.engine.check(request)
            return event_stream(call.chunks(http))
        answers = [call.answer(end) for end in await run_requests(serving, http, call.requests)]
        return json_response(answers if call.many else answers[0])

    return router


class _GenerateCall:
    """One ``/generate`` body: the requests that it stands for and the form of its answer."""

    def __init__(self, serving: Serving, body: dict[str, Any]) -> None:
        self._serving = serving
        self._tokenizer = serving.engine.tokenizer
        for name in _UNSUPPORTED:
            if body.get(name):
                raise RequestError(f"{name} is not supported by this engine; leave it out", param=name)
        prompts, batched = self._prompts(body)
        size = len(prompts)
        self.stream = _flag(body, "stream")
        self._texts = _flag(body, "return_text_in_logprobs")
        self._logprobs: dict[int, bool] = {}
        self.requests: list[GenerationRequest] = []
        for index in range(size):
            params = _item(body, "sampling_params", index, size) or {}
            if not isinstance(params, dict):
                raise RequestError("sampling_params must be an object", param="sampling_params")
            self._add(body, prompts[index], SamplingParams.from_mapping(params), index, size)
        self.many = batched or len(self.requests) > 1

    def _prompts(self, body: dict[str, Any]) -> tuple[list[list[int]], bool]:
        text, ids = body.get("text"), body.get("input_ids")
        if (text is None) == (ids is None):
            raise RequestError("give exactly one of text and input_ids", param="input_ids")
        name, given = ("text", text) if text is not None else ("input_ids", ids)
        batched = (
            isinstance(given, list) and bool(given) and isinstance(given[0], list if ids is not None else str)
        )
        prompts = given if batched else [given]
        assert isinstance(prompts, list)
        return [self._ids(name, prompt) for prompt in prompts], batched

    def _ids(self, name: str, prompt: Any) -> list[int]:
        if name == "text":
            if not isinstance(prompt, str):
                raise RequestError("text must be a string or a list of strings", param=name)
            return list(self._tokenizer.encode(prompt, add_special_tokens=False))
        if not isinstance(prompt, list) or not all(type(token) is int for token in prompt):
            raise RequestError("input_ids must be a list of token ids, or a list of such lists", param=name)
        return prompt

    def _add(
        self, body: dict[str, Any], ids: list[int], params: SamplingParams, index: int, size: int
    ) -> None:
        logprobs = bool(_item(body, "return_logprob", index, size))
        start = _item(body, "logprob_start_len", index, size)
        start = -1 if start is None or not logprobs else start
        top = (_item(body, "top_logprobs_num", index, size) or 0) if logprobs else 0
        for name, value, low in (("logprob_start_len", start, -1), ("top_logprobs_num", top, 0)):
            if type(value) is not int or value < low:
                raise RequestError(f"{name} must be a whole number of at least {low}", param=name)
        if start >= len(ids) > 0:
            raise RequestError("logprob_start_len must lie within the prompt", param="logprob_start_len")
        rid = self._rid(body, index, size)
        for answer in range(params.n):
            request = GenerationRequest(
                ids,
                replace(params, n=1),
                rid=rid if params.n == 1 or not rid else f"{rid}_{answer}",
                answer=answer,
                logprob_start_len=start,
                top_logprobs=top,
                stream=self.stream,
            )
            self._logprobs[id(request)] = logprobs
            self.requests.append(request)

    @staticmethod
    def _rid(body: dict[str, Any], index: int, size: int) -> str:
        rid = body.get("rid")
        if rid is None:
            return ""
        if isinstance(rid, list):
            rid = _item(body, "rid", index, size)
        elif size > 1:
            rid = f"{rid}_{index}"
        if not isinstance(rid, str):
            raise RequestError("rid must be a string or a list of strings", param="rid")
        return rid

    def answer(self, progress: Progress) -> dict[str, Any]:
        """Build SGLang's answer, complete or so far."""
        request = progress.request
        logprobs = self._logprobs[id(request)]
        answer = {
            "text": output_text(self._tokenizer, progress),
            "output_ids": request.output_ids[: progress.count],
            "meta_info": meta_info(self._tokenizer, progress, logprobs=logprobs, texts=self._texts),
        }
        return {"index": self.requests.index(request), **answer} if self.many else answer

    async def chunks(self, http: Request) -> AsyncIterator[bytes]:
        """Give the answer so far, again and again; a chunk holds all of the text, as SGLang's do."""
        async for progress in stream_requests(self._serving, http, self.requests):
            yield msgspec.json.encode(self.answer(progress))


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestError(f"{name} must be true or false", param=name)
    return bool(value)


def _item(body: dict[str, Any], name: str, index: int, size: int) -> Any:
    """Value for one prompt of a batch: lists hold one per prompt, anything else is for all."""
    value = body.get(name)
    if not isinstance(value, list):
        return value
    if len(value) != size:
        raise RequestError(f"{name} has {len(value)} entries for {size} prompts", param=name)
    return value[index]
