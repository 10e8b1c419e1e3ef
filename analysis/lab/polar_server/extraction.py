"""Token ids, logprobs and messages out of captured model calls, by the rules of Polar's gateway.

`normalise_response` is applied when an engine answers; `extract` reads one captured call, live or from disk.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

JsonMap = dict[str, Any]


@dataclass(frozen=True)
class Turn:
    """One model call as builders see it.

    `logprobs` is None when the engine gave none that belong to `response_ids`; `message` is None when the
    answer had no choice.
    """

    prompt_ids: list[Any]
    response_ids: list[int]
    logprobs: list[float] | None
    finish_reason: str | None
    message: JsonMap | None
    prompt_messages: list[JsonMap]
    tools: list[JsonMap] | None
    metadata: JsonMap


def normalise_response(response: JsonMap, engine: str = "sglang") -> JsonMap:
    """Return a copy of an engine's answer with ids and logprobs under Polar's canonical names.

    Parameters
    ----------
    response
        Body of the chat completion as the engine sent it.
    engine
        ``sglang`` or ``vllm``.
    """
    answer = copy.copy(response)
    choices = response.get("choices")
    if isinstance(choices, list):
        change = _normalise_vllm if engine == "vllm" else _normalise_sglang
        answer["choices"] = [change(choice) if isinstance(choice, dict) else choice for choice in choices]
    return answer


def _normalise_sglang(choice: JsonMap) -> JsonMap:
    choice = dict(choice)
    if "input_token_ids" not in choice and "prompt_token_ids" in choice:
        choice["input_token_ids"] = choice["prompt_token_ids"]
    if not isinstance(choice.get("token_ids"), list):
        derived = _meta_token_ids(choice.get("meta_info"))
        if derived is None and isinstance(choice.get("response_token_ids"), list):
            derived = list(choice["response_token_ids"])
        if derived is not None:
            choice["token_ids"] = derived
    choice = _name_token_ids(choice)
    choice.pop("meta_info", None)
    return choice


def _normalise_vllm(choice: JsonMap) -> JsonMap:
    choice = dict(choice)
    message = choice.get("message")
    if isinstance(message, dict) and message.get("reasoning_content") is None:
        if message.get("reasoning") is not None:
            choice["message"] = {**message, "reasoning_content": message["reasoning"]}
    return _name_token_ids(choice)


def _meta_token_ids(meta_info: Any) -> list[int] | None:
    """Return the ids of ``output_token_logprobs``; items without a usable id are skipped."""
    items = meta_info.get("output_token_logprobs") if isinstance(meta_info, dict) else None
    if not isinstance(items, list):
        return None
    ids = (_pair(item)[0] for item in items)
    return [token_id for token_id in ids if token_id is not None]


def _name_token_ids(choice: JsonMap) -> JsonMap:
    """Give each entry of ``logprobs.content`` its ``token_id`` when the lengths agree."""
    logprobs, ids = choice.get("logprobs"), choice.get("token_ids")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(content, list) or not isinstance(ids, list) or len(content) != len(ids):
        return choice
    named = [
        {**entry, "token_id": entry.get("token_id", token_id)} if isinstance(entry, dict) else entry
        for entry, token_id in zip(content, ids, strict=True)
    ]
    return {**choice, "logprobs": {**choice["logprobs"], "content": named}}


def _pair(item: Any) -> tuple[int | None, float | None]:
    """Return (token id, logprob) of one ``output_token_logprobs`` item, None for what is missing."""
    if isinstance(item, dict):
        logprob = item.get("logprob", item.get("token_logprob"))
        return _integer(item.get("token_id")), _number(logprob)
    if isinstance(item, Sequence) and not isinstance(item, str) and len(item) >= 2:
        return _integer(item[1]), _number(item[0])
    return None, None


def _integer(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _number(value: Any) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return None


def extract(record: JsonMap) -> Turn:
    """Return what a builder needs of one captured call; `record` is the live form or the stored one."""
    response = record.get("response") or {}
    request = record.get("request") or record.get("transformed_request") or {}
    choices = response.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    response_ids, logprobs = _response(choice, response)
    message = choice.get("message")
    finish_reason = choice.get("finish_reason")
    tools = request.get("tools")
    return Turn(
        prompt_ids=_prompt_ids(choice, response),
        response_ids=response_ids,
        logprobs=logprobs,
        finish_reason=None if finish_reason is None else str(finish_reason),
        message=message if isinstance(message, dict) else None,
        prompt_messages=_objects(request.get("messages")),
        tools=_objects(tools) if isinstance(tools, list) and tools else None,
        metadata=dict(record.get("metadata") or {}),
    )


def _objects(value: Any) -> list[JsonMap]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _prompt_ids(choice: JsonMap, response: JsonMap) -> list[Any]:
    sources = (
        choice.get("input_token_ids"),
        choice.get("prompt_token_ids"),
        response.get("prompt_token_ids"),
    )
    found: Any = next((source for source in sources if source), [])
    return list(found) if isinstance(found, list) else []


def _response(choice: JsonMap, response: JsonMap) -> tuple[list[int], list[float] | None]:
    """Return response ids and the logprobs that are paired with exactly these ids."""
    pairs = [_content_pairs(choice), _meta_pairs(choice)]
    present = choice["token_ids"] if "token_ids" in choice else response.get("token_ids")
    ids = _integers(present)
    if ids is None:
        found = next((pair for pair in pairs if pair is not None), None)
        return (found[0], found[1]) if found is not None else ([], None)
    for pair in pairs:
        if pair is not None and pair[0] == ids and ids:
            return ids, pair[1]
    return ids, None


def _integers(value: Any) -> list[int] | None:
    if not isinstance(value, list):
        return None
    numbers = [_integer(item) for item in value]
    return None if any(number is None for number in numbers) else [n for n in numbers if n is not None]


def _content_pairs(choice: JsonMap) -> tuple[list[int], list[float]] | None:
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    return _all_pairs(content, objects_only=True)


def _meta_pairs(choice: JsonMap) -> tuple[list[int], list[float]] | None:
    meta_info = choice.get("meta_info")
    items = meta_info.get("output_token_logprobs") if isinstance(meta_info, dict) else None
    return _all_pairs(items, objects_only=False)


def _all_pairs(items: Any, *, objects_only: bool) -> tuple[list[int], list[float]] | None:
    """Return ids and logprobs if every item has both, else None."""
    if not isinstance(items, list) or not items:
        return None
    ids: list[int] = []
    logprobs: list[float] = []
    for item in items:
        if objects_only and not isinstance(item, dict):
            return None
        token_id, logprob = _pair(item)
        if token_id is None or logprob is None:
            return None
        ids.append(token_id)
        logprobs.append(logprob)
    return ids, logprobs
