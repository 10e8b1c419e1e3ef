"""From sampled tokens to what a client reads: text, the text of single tokens, and SGLang's `meta_info`.

The tokens are never changed: trimming concerns the text alone.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase

from analysis.lab.engine.request import Progress

__all__ = ["meta_info", "output_text", "token_text"]


def output_text(tokenizer: PreTrainedTokenizerBase, progress: Progress) -> str:
    """Text of the output so far.

    The stop that ended the request is cut off unless `no_stop_trim` is set: a stop token as a whole, a stop
    string with what follows it. While a request streams, an incomplete character at the end is held back.
    """
    request, finish = progress.request, progress.finish
    ids = request.output_ids[: progress.count]
    matched = finish.matched if finish is not None and finish.kind == "stop" else None
    trim = not request.params.no_stop_trim
    if trim and isinstance(matched, int):
        ids = ids[:-1]
    text = str(tokenizer.decode(ids, skip_special_tokens=request.params.skip_special_tokens))
    if trim and isinstance(matched, str) and matched in text:
        text = text[: text.index(matched)]
    return text.rstrip("\ufffd") if finish is None else text


def token_text(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """Text of one token by itself; a part of a character shows as the replacement character."""
    return str(tokenizer.decode([token], skip_special_tokens=False))


def meta_info(
    tokenizer: PreTrainedTokenizerBase,
    progress: Progress,
    *,
    logprobs: bool,
    texts: bool = False,
) -> dict[str, Any]:
    """Build SGLang's `meta_info` of a request.

    Parameters
    ----------
    tokenizer
        For the texts.
    progress
        The request, as it is or was.
    logprobs
        Include ``output_token_logprobs``, ``[[logprob, id, text or null], ...]`` with the ending token, and
        whatever else of this kind the request asked for.
    texts
        Give the text of each token instead of null.
    """

    def entry(logprob: float | None, token: int) -> list[Any]:
        return [logprob, token, token_text(tokenizer, token) if texts else None]

    request, count = progress.request, progress.count
    info: dict[str, Any] = {
        "id": request.rid,
        "finish_reason": progress.finish_reason(),
        "prompt_tokens": len(request.prompt_ids),
        "completion_tokens": count,
        "cached_tokens": request.cached_tokens,
        "weight_version": request.weight_version or request.spans[-1].version,
    }
    if progress.finish is not None:
        info["e2e_latency"] = request.finished_at - request.created
    if len(request.spans) > 1:
        info["weight_versions"] = [
            {"version": span.version, "start": span.start, "end": span.end} for span in request.spans
        ]
    if logprobs:
        pairs = zip(request.output_logprobs[:count], request.output_ids[:count], strict=True)
        info["output_token_logprobs"] = [entry(logprob, token) for logprob, token in pairs]
        start = max(request.logprob_start_len, 0)
        prompt = zip(request.input_logprobs, request.prompt_ids[start:], strict=False)
        info["input_token_logprobs"] = [entry(logprob, token) for logprob, token in prompt]
        if request.top_logprobs:
            info["output_top_logprobs"] = [
                [entry(*pair) for pair in top] for top in request.output_top[:count]
            ]
    return info
