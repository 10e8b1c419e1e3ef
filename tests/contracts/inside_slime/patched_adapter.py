"""Runs Slime's OpenAI-compatible adapter against a fake SGLang, and prints its answers as one JSON line.

``python -m tests.contracts.inside_slime.patched_adapter``, with the checkout to try on the path.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

TOOL_CALL = "<tool_call><function=lookup><parameter=query>x</parameter></function></tool_call>"
TEXTS = {(701,): "hé", (702,): "\ufffd", (701, 702, 701): "hello", (801,): TOOL_CALL}
HELLO = {"messages": [{"role": "user", "content": "hello?"}], "model": "actor"}


class Tokenizer:
    """Renders every prompt as two ids per message, and knows the texts of this module's ids."""

    def apply_chat_template(self, messages: list[Any], **_: Any) -> list[int]:
        """Return ids."""
        return list(range(1, len(messages) + 2))

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        """Return the text."""
        return TEXTS[tuple(ids)]


async def generate(request: web.Request) -> web.Response:
    """Answer as SGLang: cut in the middle of a tool call's turn where the request asks for temperature 0."""
    body = await request.json()
    cut = body["sampling_params"].get("temperature") == 0
    tokens = [[-1.0, 801, None]] if cut else [[-0.5, 701, None], [-0.25, 702, None], [-0.125, 701, None]]
    meta = {
        "output_token_logprobs": tokens,
        "finish_reason": {"type": "abort" if cut else "stop"},
        "weight_version": "7",
        "cached_tokens": 1,
    }
    return web.json_response({"text": "", "meta_info": meta})


async def ask(
    client: TestClient[Any, Any], session: str, path: str = "/v1/chat/completions", **more: Any
) -> Any:
    """Send one request of a session and return its JSON, or a stream's chunks."""
    headers = {"Authorization": f"Bearer {session}"}
    async with client.post(path, headers=headers, json={**HELLO, **more}) as answer:
        text = await answer.text()
        assert answer.status == 200, text
    if not more.get("stream"):
        return json.loads(text)
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


async def main() -> dict[str, Any]:
    """Ask for each kind of answer once."""
    from slime.agent.adapters.openai import OpenAIAdapter

    upstream_app = web.Application()
    upstream_app.router.add_post("/generate", generate)
    async with TestServer(upstream_app) as upstream:
        adapter = OpenAIAdapter(tokenizer=Tokenizer(), sglang_url=str(upstream.make_url("")).rstrip("/"))
        adapter.open_session("short", max_context_tokens=1)
        async with TestClient(TestServer(adapter.app)) as client:
            answers = {
                "plain": await ask(client, "plain"),
                "stream": await ask(client, "stream", stream=True),
                "abort": await ask(client, "abort", temperature=0),
                "too long": await ask(client, "short"),
                "responses": await ask(client, "responses", "/v1/responses", input="hello?", temperature=0),
            }
        [segment] = await adapter.finish_session("plain")
    return {**answers, "segment": [segment.response_ids, segment.rollout_log_probs]}


if __name__ == "__main__":
    sys.stdout.write(f"\n{json.dumps(asyncio.run(main()))}\n")
