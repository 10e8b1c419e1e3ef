"""The gateway's way to the engine: transform a chat request, pass the gate, call, normalise, capture."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from analysis.errors import LabError
from analysis.lab.polar_server.events import now_iso
from analysis.lab.polar_server.extraction import normalise_response
from analysis.lab.polar_server.gate import GenerationGate
from analysis.lab.polar_server.http_client import HttpAnswer, HttpClient, HttpError, HttpTimeoutError
from analysis.lab.polar_server.models import CompletionRecord, CompletionSession

logger = logging.getLogger(__name__)

ENGINE_TIMEOUT = 900.0
"""Seconds for an engine's answer."""

CONNECT_TIMEOUT = 30.0
"""Seconds for connecting to an engine."""

JsonMap = dict[str, Any]


class UpstreamError(LabError):
    """Raised when the engine gave no usable answer; carries what the agent is answered."""

    def __init__(self, status: int, body: JsonMap) -> None:
        super().__init__(f"inference answered {status}: {body}")
        self.status = status
        self.body = body


@dataclass
class Capture:
    """The model calls of one session so far; the first non-empty names are kept."""

    session_id: str
    task_id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    created_at: str = field(default_factory=now_iso)
    model_requested: str | None = None
    model_used: str | None = None
    api_type: str | None = None
    records: list[JsonMap] = field(default_factory=list)

    def session(self) -> CompletionSession:
        """Return the captured calls as the builders get them."""
        return CompletionSession(
            session_id=self.session_id,
            created_at=self.created_at,
            completion_count=len(self.records),
            task_id=self.task_id,
            model_requested=self.model_requested,
            model_used=self.model_used,
            api_type=self.api_type,
            completions=[CompletionRecord(**record) for record in self.records],
        )


class InferenceProxy:
    """Sends the model calls of one gateway to one base URL.

    Parameters
    ----------
    base_url
        The engine or the router in front of it, without ``/v1``.
    model_served
        Name put into every request.
    engine
        ``sglang`` or ``vllm``: which extra fields are asked for, and how answers are read.
    persist
        Called with the stored form of every captured call.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model_served: str,
        engine: str = "sglang",
        persist: Callable[[Capture, JsonMap], None] = lambda _capture, _record: None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.model_served = model_served
        self.engine = engine
        self.gate = GenerationGate()
        self._persist = persist
        self._client = HttpClient(connect_timeout=CONNECT_TIMEOUT, timeout=ENGINE_TIMEOUT)

    async def chat(self, capture: Capture, body: JsonMap) -> JsonMap:
        """Serve one chat completion and capture it.

        Returns
        -------
        dict
            The normalised answer, with ``model`` set back to what was asked for.

        Raises
        ------
        UpstreamError
            When the engine refused, failed or could not be reached; nothing is captured then.
        """
        request = transform_chat(body, self.model_served)
        async with self.gate.call():
            response = await self._post(engine_request(request, self.engine))
        answer = normalise_response(response, self.engine)
        requested = str(body.get("model") or "unknown")
        capture.model_requested = capture.model_requested or requested
        capture.model_used = capture.model_used or self.model_served or str(response.get("model") or "")
        capture.api_type = capture.api_type or "openai_chat"
        record = {
            "completion_id": f"msg_{uuid.uuid4().hex[:12]}",
            "timestamp": now_iso(),
            "request": request,
            "original_request": body,
            "response": answer,
            "metadata": completion_metadata(capture, response),
        }
        capture.records.append(record)
        self._persist(capture, record)
        return {**answer, "model": requested}

    async def get(self, path: str, *, timeout: float = 5.0) -> HttpAnswer:
        """Fetch a path of the engine; raises `HttpError`."""
        return await self._client.get(f"{self.base_url}{path}", timeout=timeout)

    async def aclose(self) -> None:
        """Cut the connections to the engine."""
        await self._client.aclose()

    async def _post(self, request: JsonMap) -> JsonMap:
        try:
            response = await self._client.post(f"{self.base_url}/v1/chat/completions", json=request)
        except HttpTimeoutError as error:
            raise UpstreamError(504, _error("timeout_error", f"inference timed out: {error}")) from error
        except HttpError as error:
            raise UpstreamError(502, _error("upstream_error", f"inference unreachable: {error}")) from error
        try:
            data = response.json()
        except ValueError as error:
            if response.ok:
                raise UpstreamError(500, _error("upstream_error", "inference answer is not JSON")) from error
            data = None
        if not response.ok:
            if isinstance(data, dict) and "error" in data:
                raise UpstreamError(response.status, data)
            raise UpstreamError(response.status, _error("upstream_http_error", response.text[:2000]))
        if not isinstance(data, dict):
            raise UpstreamError(500, _error("upstream_error", "inference answer is not an object"))
        return data


def _error(kind: str, message: str) -> JsonMap:
    return {"error": {"message": message, "type": kind}}


def transform_chat(body: JsonMap, model_served: str) -> JsonMap:
    """Return the request that is stored and sent on: served model, one system message, `max_tokens` set."""
    request = dict(body)
    if model_served:
        request["model"] = model_served
    if "max_completion_tokens" in request and request.get("max_tokens") is None:
        request["max_tokens"] = request["max_completion_tokens"]
    if "qwen3.5" in model_served.lower():
        request["chat_template_kwargs"] = {
            "enable_thinking": False,
            **(request.get("chat_template_kwargs") or {}),
        }
    request["messages"] = _one_system_message(request.get("messages"))
    return request


def _one_system_message(messages: Any) -> list[JsonMap]:
    if not isinstance(messages, list):
        return []
    system, others = [], []
    for message in messages:
        if isinstance(message, dict) and message.get("role") in ("system", "developer"):
            system.append(_text(message.get("content")))
        else:
            others.append(message)
    return [{"role": "system", "content": "\n\n".join(system)}, *others] if system else others


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def engine_request(request: JsonMap, engine: str) -> JsonMap:
    """Return a copy of the request with the fields that make an engine give ids and logprobs."""
    sent = {key: value for key, value in request.items() if key != "stream_options"}
    sent.update(stream=False, logprobs=True)
    if engine == "vllm":
        sent["return_token_ids"] = True
        sent.setdefault("top_logprobs", 0)
        sent["messages"] = [_renamed_reasoning(message) for message in sent.get("messages", [])]
    else:
        sent.update(return_prompt_token_ids=True, return_meta_info=True)
    return sent


def _renamed_reasoning(message: Any) -> Any:
    if not isinstance(message, dict) or "reasoning_content" not in message:
        return message
    rest = {key: value for key, value in message.items() if key != "reasoning_content"}
    return {**rest, "reasoning": message["reasoning_content"]}


def completion_metadata(capture: Capture, response: JsonMap) -> JsonMap:
    """Return a call's metadata: the task's, the ids, and which weights served it.

    ``weight_version`` is what the engine reports, as text. ``policy_version`` is the same as a number where
    it is one, and then overrides what the task was submitted with. ``weight_versions`` are the spans of an
    answer that several versions served, whose first version is then the ``weight_version``.
    ``finish_reason`` tells which turn of a merged trace was cut.
    """
    metadata: JsonMap = {"session_id": capture.session_id, "task_id": capture.task_id, **capture.metadata}
    reported = _weight_version(response)
    if reported is not None:
        metadata["weight_version"] = str(reported)
        number = str(reported).strip()
        if number.isdecimal():
            metadata["policy_version"] = int(number)
    spans = _meta_info(response).get("weight_versions")
    if isinstance(spans, list) and len(spans) > 1:
        metadata["weight_versions"] = spans
    reason = _choice(response).get("finish_reason")
    if isinstance(reason, str):
        metadata["finish_reason"] = reason
    return metadata


def _choice(response: JsonMap) -> JsonMap:
    choices = response.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}


def _meta_info(response: JsonMap) -> JsonMap:
    meta_info = _choice(response).get("meta_info")
    return meta_info if isinstance(meta_info, dict) else {}


def _weight_version(response: JsonMap) -> Any:
    spans = _meta_info(response).get("weight_versions")
    if isinstance(spans, list) and spans and isinstance(spans[0], dict) and "version" in spans[0]:
        return spans[0]["version"]
    metadata = response.get("metadata")
    named = metadata.get("weight_version") if isinstance(metadata, dict) else None
    return named if named is not None else _meta_info(response).get("weight_version")
