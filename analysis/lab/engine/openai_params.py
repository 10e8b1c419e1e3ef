"""Reading OpenAI-style requests: messages, prompts and sampling keys, as far as an engine must care.

Keys that are not read here are ignored: agents send many that mean nothing to an engine. Keys that would
change the answer and are not supported are refused by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedTokenizerBase

from analysis.errors import RequestError
from analysis.lab.engine.sampling import SamplingParams, refuse_unless_neutral

__all__ = ["chat_prompt_ids", "completion_prompts", "sampling_params_of"]

_SAME_NAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "no_stop_trim",
    "n",
    "sampling_seed",
)
_REFUSED = (
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "min_tokens",
    "regex",
    "ebnf",
)


def sampling_params_of(body: Mapping[str, Any], *, default_max_tokens: int | None) -> SamplingParams:
    """Read the sampling keys of a chat or completion request.

    Parameters
    ----------
    body
        The request.
    default_max_tokens
        Used when neither ``max_completion_tokens`` nor ``max_tokens`` is given; None means what the context
        leaves.
    """
    for name in _REFUSED:
        refuse_unless_neutral(name, body.get(name) or None)
    response_format = body.get("response_format")
    if isinstance(response_format, dict) and response_format.get("type", "text") != "text":
        raise RequestError("only response_format 'text' is supported", param="response_format")
    values = {name: body[name] for name in _SAME_NAME if body.get(name) is not None}
    if body.get("seed") is not None and "sampling_seed" not in values:
        values["sampling_seed"] = body["seed"]
    asked = body.get("max_completion_tokens")
    asked = body.get("max_tokens") if asked is None else asked
    params = SamplingParams.from_mapping(values)
    limit = default_max_tokens if asked is None else asked
    return SamplingParams(**{**vars(params), "max_new_tokens": limit})


def chat_prompt_ids(tokenizer: PreTrainedTokenizerBase, body: Mapping[str, Any]) -> list[int]:
    """Render and tokenise a chat request, or take its `input_ids` when a direct client gives them.

    Raises
    ------
    RequestError
        When messages are malformed, or the template cannot render them.
    """
    if body.get("input_ids") is not None:
        ids = body["input_ids"]
        if not isinstance(ids, list) or not all(type(token) is int for token in ids):
            raise RequestError("input_ids must be a list of token ids", param="input_ids")
        return ids
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages must be a list with at least one message", param="messages")
    tools = _tools(body)
    continue_last = body.get("continue_final_message") is True
    try:
        ids = tokenizer.apply_chat_template(
            [_message(message, index) for index, message in enumerate(messages)],
            tools=tools,
            add_generation_prompt=not continue_last,
            continue_final_message=continue_last,
            tokenize=True,
            return_dict=False,
            **_template_variables(tokenizer, body),
        )
    except RequestError:
        raise
    except Exception as error:  # a template is a program of the checkpoint: anything may come out of it
        raise RequestError(
            f"the chat template cannot render these messages: {error}", param="messages"
        ) from error
    return list(ids)


def completion_prompts(tokenizer: PreTrainedTokenizerBase, prompt: Any) -> list[list[int]]:
    """Read the `prompt` of a completion request: a string, token ids, or a list of either."""
    if isinstance(prompt, str):
        prompts: list[Any] = [prompt]
    elif isinstance(prompt, list) and prompt and all(type(item) is int for item in prompt):
        prompts = [prompt]
    elif isinstance(prompt, list) and prompt:
        prompts = prompt
    else:
        raise RequestError("prompt must be a string, a list of token ids, or a list of these", param="prompt")
    found = []
    for item in prompts:
        if isinstance(item, str):
            found.append(list(tokenizer.encode(item, add_special_tokens=False)))
        elif isinstance(item, list) and all(type(token) is int for token in item):
            found.append(item)
        else:
            raise RequestError("prompt must hold strings or lists of token ids", param="prompt")
    return found


def _tools(body: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    choice, tools = body.get("tool_choice"), body.get("tools")
    if choice not in (None, "auto", "none"):
        raise RequestError(
            "tool_choice must be 'auto' or 'none': calls cannot be forced", param="tool_choice"
        )
    if not tools or choice == "none":
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RequestError("tools must be a list of objects", param="tools")
    return tools


def _message(message: Any, index: int) -> dict[str, Any]:
    """Check one message and join the text parts of its content."""
    where = f"messages[{index}]"
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise RequestError(f"{where} must be an object with a role", param="messages")
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        if len(texts) != len(content) or not all(isinstance(text, str) for text in texts):
            raise RequestError(f"{where}.content may hold text parts only", param="messages")
        content = "".join(str(text) for text in texts)
    elif content is not None and not isinstance(content, str):
        raise RequestError(
            f"{where}.content must be a string, a list of text parts, or null", param="messages"
        )
    return {**message, "content": content}


def _template_variables(tokenizer: PreTrainedTokenizerBase, body: Mapping[str, Any]) -> dict[str, Any]:
    """Client-chosen template variables, without those that would reach past the template."""
    given = body.get("chat_template_kwargs")
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise RequestError("chat_template_kwargs must be an object", param="chat_template_kwargs")
    reserved = set(inspect.signature(tokenizer.apply_chat_template).parameters) | {"messages"}
    return {name: value for name, value in given.items() if name not in reserved}
