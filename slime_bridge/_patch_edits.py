"""The edits that make Slime v0.3.0's OpenAI-compatible adapter return what Polar reads of a model call.

Each edit is a short anchor, which stands exactly once in its file, and what takes its place. Only anchors are
Slime's; everything that is added is written here. The hashes are those of the files at the git tag.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FILES", "MARK", "SLIME_VERSION", "Edit", "FileEdits"]

SLIME_VERSION = "0.3.0"
"""The release that the edits are made for."""

MARK = "slime-bridge patch-slime"
"""Stands in every patched file."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace `anchor`, which occurs once, by `replacement`, which occurs once afterwards."""

    anchor: str
    replacement: str


@dataclass(frozen=True, slots=True)
class FileEdits:
    """One file: its path below the checkout, the SHA-256 of its bytes as released, and the edits in order."""

    path: str
    sha256: str
    edits: tuple[Edit, ...]


_TURN_RECORD = FileEdits(
    "slime/agent/trajectory.py",
    "39e40a826277c2c6d1b8b4624cec81f82ecd1cdcca4e70fe597b4da8136783a9",
    (
        Edit(
            "    output_log_probs: list[float] = dataclasses.field(default_factory=list)\n",
            "    output_log_probs: list[float] = dataclasses.field(default_factory=list)\n"
            "    # Reported beside the tokens, such as the weight version. (slime-bridge patch-slime)\n"
            "    meta_info: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)\n",
        ),
    ),
)

_GENERATE = FileEdits(
    "slime/agent/adapters/common.py",
    "7e8c8d4216014a34c17e3c69d2dcd6fed1c2e5e785e67706b75037c738ad266d",
    (
        Edit(
            '        finish = (meta.get("finish_reason") or {}).get("type", "stop") or "stop"\n',
            '        finish = (meta.get("finish_reason") or {}).get("type", "stop") or "stop"\n'
            "        # Lists of one entry per token stay out: ids and logprobs are kept as such. "
            "(slime-bridge patch-slime)\n"
            '        reported = {k: v for k, v in meta.items() if not k.endswith("logprobs")}\n',
        ),
        Edit(
            "        output_log_probs=output_log_probs,\n",
            "        output_log_probs=output_log_probs,\n        meta_info=reported,\n",
        ),
    ),
)

_TOKEN_FIELDS = '''
# slime-bridge patch-slime: begin
def _token_fields(turn: TurnRecord, tokenizer: Any) -> dict[str, Any]:
    """Return what a rollout server reads of a choice: the ids sent and sampled, their logprobs, meta info."""
    texts: dict[int, str] = {}
    content: list[dict[str, Any]] = []
    token_logprobs: list[list[Any]] = []
    # Without one logprob for each token there is no telling which belongs to which.
    aligned = len(turn.output_log_probs) == len(turn.output_ids)
    for token_id, logprob in zip(turn.output_ids, turn.output_log_probs, strict=False) if aligned else ():
        text = texts.get(token_id)
        if text is None:
            text = texts[token_id] = tokenizer.decode([token_id], skip_special_tokens=False)
        # A token may end inside a character, and then its text does not tell its bytes.
        encoded = None if "\\ufffd" in text else list(text.encode("utf-8", "surrogatepass"))
        content.append(
            {"token": text, "token_id": token_id, "logprob": logprob, "bytes": encoded, "top_logprobs": []}
        )
        token_logprobs.append([logprob, token_id, text])
    meta_info = {"finish_reason": {"type": turn.finish_reason}, **turn.meta_info}
    if aligned:
        meta_info["output_token_logprobs"] = token_logprobs
    return {
        "input_token_ids": turn.prompt_ids,
        "prompt_token_ids": turn.prompt_ids,
        "token_ids": turn.output_ids,
        "logprobs": {"content": content} if aligned else None,
        "meta_info": meta_info,
    }


def _add_token_fields(response: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Put token fields into a response's or chunk's choice, and the weight version where SGLang has it."""
    response["choices"][0].update(fields)
    version = fields["meta_info"].get("weight_version")
    if version is not None:
        response["metadata"] = {"weight_version": version}
    return response


# slime-bridge patch-slime: end
'''

_HANDLER = "async def _handle_chat_completions(request: web.Request) -> web.StreamResponse:\n"
_STREAM_CALL = (
    "        return await "
    "_stream_chat_completion(request, body, parsed, turn.finish_reason, in_tok, out_tok)\n"
)
_RESPONSE_CALL = (
    "    return web.json_response("
    "_chat_completion_response(body, parsed, turn.finish_reason, in_tok, out_tok))\n"
)
_STREAM_SIGNATURE = """async def _stream_chat_completion(
    request: web.Request,
    body: dict,
    parsed: ParsedModelOutput,
    finish: str,
    in_tok: int,
    out_tok: int,
"""

_OPENAI = FileEdits(
    "slime/agent/adapters/openai.py",
    "9d80d77311392a347dc7bc60ac77c49ff6b516d2b9d6bfbcda528a786cc8389a",
    (
        Edit(
            '    if parsed.tool_uses:\n        return "tool_calls"\n',
            '    if finish == "abort":  # cut by a weight push, whatever it holds so far '
            "(slime-bridge patch-slime)\n"
            '        return "abort"\n'
            '    if parsed.tool_uses:\n        return "tool_calls"\n',
        ),
        Edit(_HANDLER, f"{_TOKEN_FIELDS.lstrip()}{_HANDLER}"),
        Edit(
            _STREAM_CALL,
            "        token_fields = _token_fields(turn, request.app[TOKENIZER_KEY])\n"
            "        return await _stream_chat_completion(\n"
            "            request, body, parsed, turn.finish_reason, in_tok, out_tok, token_fields\n"
            "        )\n",
        ),
        Edit(
            _RESPONSE_CALL,
            "    response = _chat_completion_response(body, parsed, turn.finish_reason, in_tok, out_tok)\n"
            "    return web.json_response("
            "_add_token_fields(response, _token_fields(turn, request.app[TOKENIZER_KEY])))\n",
        ),
        Edit(_STREAM_SIGNATURE, f"{_STREAM_SIGNATURE}    token_fields: dict[str, Any] | None = None,\n"),
        Edit(
            '            chunk["usage"] = usage\n',
            '            chunk["usage"] = usage\n'
            "            if token_fields is not None:  # on the last chunk, which is the one with the usage\n"
            "                _add_token_fields(chunk, token_fields)\n",
        ),
        Edit(
            '    status = "incomplete" if finish == "length" else "completed"\n',
            '    status = "incomplete" if finish in ("length", "abort") else "completed"\n',
        ),
    ),
)

FILES: tuple[FileEdits, ...] = (_TURN_RECORD, _GENERATE, _OPENAI)
"""Every file that is changed, in the order in which they are written: what uses a thing comes after it."""
