"""The doctor's check that a chat completion carries what training needs: token ids, logprobs, weight version.

One short generation is asked for in the way a gateway asks. Where something is missing, two more tell where
it was lost: the same one straight at an engine, and one at the native endpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slime_bridge.doctor.http import Web
from slime_bridge.doctor.report import Finding, Severity, finding
from slime_bridge.doctor.server import Gateway
from slime_bridge.errors import BridgeError

__all__ = ["NO_IDS_FIX", "NO_VERSION_FIX", "TokenEvidence", "check_generation", "read_evidence"]

_CHECK = "token ids"
_GENERATION_SECONDS = 30.0
_ASKED_FOR: dict[str, dict[str, Any]] = {
    "vllm": {"return_token_ids": True, "top_logprobs": 0},
    "sglang": {"return_prompt_token_ids": True, "return_meta_info": True},
}

ROUTER_DROPS = (
    "sglang-router 0.3.2 writes chat requests anew and drops return_prompt_token_ids, return_meta_info, "
    "return_token_ids, rid and other fields that it does not know"
)
"""Why a stock router costs the token ids."""

NO_IDS_FIX = (
    "any one of: an engine that returns ids unasked with logprobs (SGLang with the serving patch that Polar "
    "ships)\n"
    "a router build that passes unknown fields on (Slime's image has its own)\n"
    "gateways that call Slime's adapter, patched by slime-bridge patch-slime DIR\n"
    "with a single engine: gateways that call it directly (inference.base_url in the topology)"
)
NO_VERSION_FIX = (
    "an engine that puts weight_version into meta_info or metadata unasked; without it lag is counted from "
    "the submission, and turns of different weights are not told apart"
)


@dataclass(frozen=True, slots=True)
class TokenEvidence:
    """What a chat completion carries, by the rules of Polar's gateway.

    Parameters
    ----------
    prompt_ids, output_ids
        Numbers of token ids.
    logprobs
        Number of output tokens whose logprob belongs to them; 0 if they do not match the ids.
    weight_version
        As reported, None if it is not.
    """

    prompt_ids: int = 0
    output_ids: int = 0
    logprobs: int = 0
    weight_version: str | None = None

    @property
    def trainable(self) -> bool:
        """Whether a trace of this answer can be trained on."""
        return self.prompt_ids > 0 and 0 < self.output_ids == self.logprobs

    def describe(self) -> str:
        """Return the numbers as text."""
        version = (
            "no weight version" if self.weight_version is None else f"weight version {self.weight_version}"
        )
        return (
            f"{self.prompt_ids} prompt ids, {self.output_ids} output ids, {self.logprobs} logprobs, {version}"
        )


def read_evidence(answer: Any) -> TokenEvidence:
    """Read a chat completion; whatever it is, nothing is raised."""
    answer = _map(answer)
    choices = answer.get("choices")
    choice = _map(choices[0]) if isinstance(choices, list) and choices else {}
    meta = _map(choice.get("meta_info"))
    prompt = choice.get("input_token_ids") or choice.get("prompt_token_ids") or answer.get("prompt_token_ids")
    paired = [_pairs(meta.get("output_token_logprobs")), _pairs(_map(choice.get("logprobs")).get("content"))]
    ids = choice.get("token_ids", answer.get("token_ids"))
    if not isinstance(ids, list):
        ids = next(([token for token, _ in pairs] for pairs in paired if pairs), [])
    aligned = any([token for token, _ in pairs] == ids for pairs in paired if pairs)
    version = meta.get("weight_version", _map(answer.get("metadata")).get("weight_version"))
    return TokenEvidence(
        prompt_ids=len(prompt) if isinstance(prompt, list) else 0,
        output_ids=len(ids),
        logprobs=len(ids) if aligned else 0,
        weight_version=None if version is None else str(version),
    )


async def check_generation(
    web: Web, gateways: Iterable[Gateway], workers: Sequence[str], *, model: str
) -> list[Finding]:
    """Ask for one short chat completion on each way that gateways take.

    Parameters
    ----------
    web
        Requests.
    gateways
        Name the addresses and dialects to try.
    workers
        Base URLs of engines behind the router.
    model
        Model name to ask for where none is listed.
    """
    ways = sorted({(g.base_url, g.engine) for g in gateways if g.base_url})
    if not ways:
        text = "no gateway says where it sends model calls"
        return [finding(_CHECK, Severity.SKIPPED, text, fix="the probe task tells what comes back")]
    found: list[Finding] = []
    for base_url, engine in ways:
        found += await _check_way(web, base_url, engine, workers, model)
    return found


async def _check_way(
    web: Web, base_url: str, engine: str, workers: Sequence[str], model: str
) -> list[Finding]:
    try:
        evidence = await _ask(web, base_url, engine, model)
    except BridgeError as error:
        text = f"no chat completion from {base_url} from here; the gateway may reach it all the same"
        return [finding(_CHECK, Severity.SKIPPED, text, evidence=str(error))]
    text = f"a chat completion through {base_url} carries {evidence.describe()}"
    if evidence.trainable:
        found = [finding(_CHECK, Severity.OK, text)]
        if evidence.weight_version is None:
            missing = f"answers through {base_url} do not say which weights they come from"
            found.append(finding(_CHECK, Severity.WARNING, missing, fix=NO_VERSION_FIX))
        return found
    cause = await _cause(web, base_url, engine, [url for url in workers if url != base_url], model)
    problem = f"{text}: every group would have zero trainable tokens"
    return [finding(_CHECK, Severity.ERROR, problem, evidence=cause, fix=NO_IDS_FIX)]


async def _cause(web: Web, base_url: str, engine: str, workers: Sequence[str], model: str) -> str:
    """Find out who loses the ids, as text."""
    for worker in workers[:1]:
        try:
            direct = await _ask(web, worker, engine, model)
        except BridgeError as error:
            return f"the engine {worker} cannot be asked from here: {error}"
        if direct.trainable:
            return (
                f"the engine {worker}, asked directly, gives {direct.describe()}: the router drops the "
                f"request fields that ask for them ({ROUTER_DROPS})"
            )
    try:
        body = {"text": "Hello", "sampling_params": {"max_new_tokens": 2}, "return_logprob": True}
        answer = await web.post(f"{base_url}/generate", body, timeout=_GENERATION_SECONDS)
    except BridgeError as error:
        return f"the native endpoint tells nothing more: {error}"
    if _pairs(_map(_map(answer).get("meta_info")).get("output_token_logprobs")):
        return (
            "the native /generate does give token ids: the engine's chat endpoint lacks the extension, or a "
            f"router on the way drops the fields that ask for it ({ROUTER_DROPS})"
        )
    return "the native /generate gives no token ids either"


async def _ask(web: Web, base_url: str, engine: str, model: str) -> TokenEvidence:
    body = {
        "model": await _model(web, base_url, model),
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 4,
        "stream": False,
        "logprobs": True,
        **_ASKED_FOR.get(engine, _ASKED_FOR["sglang"]),
    }
    # One attempt: a router may repeat a generation on its own already.
    return read_evidence(await web.post(f"{base_url}/v1/chat/completions", body, timeout=_GENERATION_SECONDS))


async def _model(web: Web, base_url: str, model: str) -> str:
    try:
        listed = _map(await web.get(f"{base_url}/v1/models")).get("data")
    except BridgeError:
        return model
    first = _map(listed[0]) if isinstance(listed, list) and listed else {}
    return str(first.get("id") or model)


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _pairs(items: Any) -> list[tuple[int, float]]:
    """Return (id, logprob) of each token, from either of the two forms; empty unless every item has both."""
    pairs: list[tuple[int, float]] = []
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict):
            token, logprob = item.get("token_id"), item.get("logprob")
        elif isinstance(item, list) and len(item) >= 2:
            logprob, token = item[0], item[1]
        else:
            return []
        if not isinstance(token, int) or not isinstance(logprob, int | float):
            return []
        pairs.append((token, float(logprob)))
    return pairs
