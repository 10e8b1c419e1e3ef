"""Checks of token arrays trace by trace: lengths, masks, logprobs, ids, and what was trained on."""

from __future__ import annotations

from typing import Any

import numpy as np

from analysis.stats._audit import AuditData, Check, Found, at_positions, unchecked
from analysis.stats.columns import Bools, Floats, floats, integers

__all__ = ["ARRAY_CHECKS"]

_NO_TOKENS = "no token arrays are loaded"
_NO_LOGPROBS = "no logprobs are loaded"
_MANY = 32
_SOME = 16
_ALMOST_ALL = 0.98


def _lengths(data: AuditData, name: str) -> Found:
    tokens = data.tokens
    if not tokens.has(name):
        return unchecked(f"no array {name} is loaded")
    own, response = tokens.arrays[name].lengths, tokens.response.lengths
    there = own > 0
    wrong = np.flatnonzero(there & (own != response))
    details = [f"{own[i]} entries for {response[i]} response tokens" for i in wrong]
    return Found(tokens.rows[wrong], details, int(there.sum()), np.minimum(own, response)[wrong])


def mask_length(data: AuditData) -> Found:
    """Find masks that are not as long as the response."""
    return _lengths(data, "mask")


def logprob_length(data: AuditData) -> Found:
    """Find logprobs that are not as many as response tokens."""
    return _lengths(data, "logprob")


def mask_values(data: AuditData) -> Found:
    """Find mask entries other than 0 and 1."""
    if not data.tokens.has("mask"):
        return unchecked("no masks are loaded")
    mask = data.tokens.aligned("mask")
    wrong = ~np.isnan(mask) & (mask != 0) & (mask != 1)
    return at_positions(data, wrong, "entries that are neither 0 nor 1", int(data.tokens.fits("mask").sum()))


def logprob_missing(data: AuditData) -> Found:
    """Find sampled tokens without a finite logprob."""
    if not data.tokens.has("logprob"):
        return unchecked(_NO_LOGPROBS)
    fits = data.tokens.fits("logprob")
    wrong = data.sampled & ~np.isfinite(data.logprob) & fits[data.tokens.response.owner]
    return at_positions(data, wrong, "sampled tokens without a finite logprob", int(fits.sum()))


def logprob_positive(data: AuditData) -> Found:
    """Find logprobs above 0: no probability is above 1."""
    if not data.tokens.has("logprob"):
        return unchecked(_NO_LOGPROBS)
    wrong = data.sampled & (np.nan_to_num(data.logprob, nan=-1.0, posinf=-1.0) > 1e-4)
    return at_positions(data, wrong, "logprobs above 0", int(data.tokens.fits("logprob").sum()))


def logprob_on_masked(data: AuditData) -> Found:
    """Find logprobs on tokens that nobody sampled: the two arrays are shifted against each other."""
    tokens = data.tokens
    if not tokens.has("logprob") or not tokens.has("mask"):
        return unchecked("masks and logprobs are not both loaded")
    # Builders write 0 there; the bridge masks turns afterwards that a weight push may have cut.
    cut = (integers(data.traces, "aborted_turns") > 0)[tokens.rows]
    both = tokens.fits("mask") & tokens.fits("logprob") & ~cut & (data.count(data.sampled) > 0)
    value = np.nan_to_num(data.logprob)
    wrong = (tokens.aligned("mask") == 0) & (value != 0) & both[tokens.response.owner]
    return at_positions(data, wrong, "logprobs on tokens with mask 0", int(both.sum()))


def logprob_zeros(data: AuditData) -> Found:
    """Find long responses whose logprobs are all 0: certain tokens are 0, but not all of them."""
    tokens = data.tokens
    if not tokens.has("logprob"):
        return unchecked(_NO_LOGPROBS)
    sampled = data.count(data.sampled & np.isfinite(data.logprob))
    zeros = data.count(data.sampled & (data.logprob == 0))
    long = sampled >= _MANY
    wrong = np.flatnonzero(long & (zeros >= _ALMOST_ALL * sampled))
    details = [f"{int(zeros[i])} of {int(sampled[i])} logprobs are exactly 0" for i in wrong]
    return Found(tokens.rows[wrong], details, int(long.sum()))


def logprob_constant(data: AuditData) -> Found:
    """Find responses whose logprobs are one number other than 0: a stand-in, not a measurement."""
    tokens = data.tokens
    if not tokens.has("logprob"):
        return unchecked(_NO_LOGPROBS)
    used = data.sampled & np.isfinite(data.logprob)
    low, high = np.full(len(tokens), np.inf), np.full(len(tokens), -np.inf)
    np.minimum.at(low, tokens.response.owner[used], data.logprob[used])
    np.maximum.at(high, tokens.response.owner[used], data.logprob[used])
    enough = data.count(used) >= _SOME
    wrong = np.flatnonzero(enough & (low == high) & (low != 0))
    return Found(tokens.rows[wrong], [f"all are {low[i]:.6g}" for i in wrong], int(enough.sum()))


def logprob_coarse(data: AuditData) -> Found:
    """Find logprobs that all fit into bfloat16: they were rounded on the way."""
    tokens = data.tokens
    if not tokens.has("logprob"):
        return unchecked(_NO_LOGPROBS)
    used = data.sampled & np.isfinite(data.logprob) & (data.logprob != 0)
    single = data.logprob.astype(np.float32)
    coarse = (single.view(np.uint32) & 0xFFFF == 0) & (single == data.logprob)
    number = data.count(used)
    enough = number >= _MANY
    wrong = np.flatnonzero(enough & (data.count(used & coarse) == number))
    details = [f"all {int(number[i])} fit into bfloat16" for i in wrong]
    return Found(tokens.rows[wrong], details, int(enough.sum()))


def mask_edges(data: AuditData) -> Found:
    """Find responses that do not begin or do not end with a sampled token."""
    tokens = data.tokens
    if not tokens.has("mask"):
        return unchecked("no masks are loaded")
    cut = (integers(data.traces, "aborted_turns") > 0)[tokens.rows]
    usable = tokens.fits("mask") & (data.count(data.sampled) > 0) & ~cut
    items = np.flatnonzero(usable)
    first, last = tokens.response.offsets[:-1][items], tokens.response.offsets[1:][items] - 1
    begins, ends = data.sampled[first], data.sampled[last]
    wrong = ~begins | ~ends
    positions = np.where(begins, tokens.response.lengths[items] - 1, 0)[wrong]
    details = [
        "the last token is not sampled" if b else "the first token is not sampled" for b in begins[wrong]
    ]
    return Found(tokens.rows[items[wrong]], details, len(items), positions.astype(np.int64))


def mask_turns(data: AuditData) -> Found:
    """Find traces with another number of sampled stretches than model calls."""
    tokens = data.tokens
    calls = integers(data.traces, "calls", missing=-1)[tokens.rows]
    cut = (integers(data.traces, "aborted_turns") > 0)[tokens.rows]
    usable = tokens.fits("mask") & (calls > 0) & (data.count(data.sampled) > 0) & ~cut
    if not usable.any():
        return unchecked("nobody tells how many model calls a trace holds")
    turns = np.zeros(len(tokens), dtype=np.int64)
    np.maximum.at(turns, tokens.response.owner, tokens.turns + 1)
    wrong = np.flatnonzero(usable & (turns != calls))
    details = [f"{turns[i]} sampled stretches for {calls[i]} model calls" for i in wrong]
    return Found(tokens.rows[wrong], details, int(usable.sum()))


def token_ids(data: AuditData) -> Found:
    """Find token ids that no vocabulary has."""
    tokens = data.tokens
    if not len(tokens):
        return unchecked(_NO_TOKENS)
    top = np.inf if data.vocabulary is None else data.vocabulary
    wrong = (tokens.response.values < 0) | (tokens.response.values >= top)
    found = at_positions(data, wrong, "ids outside the vocabulary", len(tokens))
    if "prompt" not in tokens.arrays:
        return found
    prompt = tokens.arrays["prompt"]
    bad = np.unique(prompt.owner[(prompt.values < 0) | (prompt.values >= top)])
    bad = bad[~np.isin(tokens.rows[bad], found.rows)]
    return Found(
        np.concatenate([found.rows, tokens.rows[bad]]),
        [*found.details, *(["ids outside the vocabulary in the prompt"] * len(bad))],
        len(tokens),
        np.concatenate([found.positions if found.positions is not None else bad, np.full(len(bad), -1)]),
    )


def token_counts(data: AuditData) -> Found:
    """Find arrays of another length than the trace is said to have: torn, or of another trace."""
    tokens = data.tokens
    if not len(tokens):
        return unchecked(_NO_TOKENS)
    wrong = np.zeros(len(tokens), dtype=bool)
    texts_of = [""] * len(tokens)
    for name, array in (("response_tokens", "response"), ("prompt_tokens", "prompt")):
        if array not in tokens.arrays:
            continue
        said = integers(data.traces, name, missing=-1)[tokens.rows]
        own = tokens.arrays[array].lengths
        off = (said >= 0) & (said != own)
        for place in np.flatnonzero(off & ~wrong):
            texts_of[place] = f"{own[place]} {array} ids, {said[place]} declared"
        wrong |= off
    for place in np.flatnonzero(~wrong & (tokens.response.lengths == 0)):
        texts_of[place], wrong[place] = "the response is empty", True
    items = np.flatnonzero(wrong)
    return Found(tokens.rows[items], [texts_of[i] for i in items], len(tokens))


def trained_unsampled(data: AuditData) -> Found:
    """Find tokens that the trainer learns from although nobody sampled them."""
    tokens = data.tokens
    if not tokens.has("trainable") or not tokens.has("mask"):
        return unchecked("what was trained on and what was sampled are not both loaded")
    both = tokens.fits("trainable") & tokens.fits("mask")
    wrong = (tokens.aligned("trainable") > 0) & (tokens.aligned("mask") == 0)
    return at_positions(data, wrong, "trained tokens that nobody sampled", int(both.sum()))


def train_logprobs(data: AuditData) -> Found:
    """Find traces whose two logprobs have nothing to do with each other, and whether a shift explains it."""
    tokens = data.tokens
    if not tokens.has("train_logprob"):
        return unchecked("no train logprobs are loaded")
    trained = tokens.aligned("train_logprob")
    used = data.sampled & np.isfinite(data.logprob) & np.isfinite(trained)
    number = data.count(used)
    distance = np.bincount(
        tokens.response.owner[used], weights=np.abs(trained - data.logprob)[used], minlength=len(tokens)
    )
    mean = np.divide(distance, number, out=np.zeros(len(tokens)), where=number > 0)
    enough = number >= _SOME
    rows, details = [], []
    for item in np.flatnonzero(enough & (mean > 0.5)).tolist():
        a, b = data.logprob[_slice(tokens, item)], trained[_slice(tokens, item)]
        keep = used[_slice(tokens, item)]
        if _close(a[keep], b[keep]):
            continue
        rows.append(item)
        details.append(f"they differ by {mean[item]:.2f} on average{_shift(a, b, keep)}")
    return Found(tokens.rows[np.array(rows, dtype=np.int64)], details, int(enough.sum()))


def _slice(tokens: Any, item: int) -> slice:
    return slice(int(tokens.response.offsets[item]), int(tokens.response.offsets[item + 1]))


def _close(a: Floats, b: Floats) -> bool:
    """Tell whether two logprobs go together: drift changes their level, not which tokens were unlikely."""
    if a.std() < 1e-6 or b.std() < 1e-6:
        return False
    return float(np.corrcoef(a, b)[0, 1]) > 0.5


def _shift(a: Floats, b: Floats, keep: Bools) -> str:
    for step in (1, -1):
        moved = np.roll(a, step)
        inner = keep & np.roll(keep, step)
        inner[:1] = inner[-1:] = False
        if inner.sum() >= 8 and _close(moved[inner], b[inner]):
            return f"; they agree when shifted by {step:+d}"
    return ""


def advantages_uneven(data: AuditData) -> Found:
    """Find traces whose token advantages differ, in a run in which nearly all traces have one for all."""
    low, high = floats(data.traces, "advantage_min"), floats(data.traces, "advantage_max")
    there = ~np.isnan(low) & ~np.isnan(high)
    if not there.any():
        return unchecked("no advantages per token are loaded")
    uneven = there & (high - low > 1e-5 + 1e-4 * np.abs(np.nan_to_num(high)))
    if uneven.sum() > 0.1 * there.sum():
        return unchecked("the estimator gives every token its own advantage")
    rows = np.flatnonzero(uneven)
    details = [f"from {low[row]:.4g} to {high[row]:.4g}" for row in rows]
    return Found(rows.astype(np.int64), details, int(there.sum()))


ARRAY_CHECKS: tuple[Check, ...] = (
    Check("mask_length", "error", "the mask is not as long as the response", mask_length),
    Check("mask_values", "error", "the mask holds something else than 0 and 1", mask_values),
    Check("mask_edges", "warning", "the response does not begin and end with sampled tokens", mask_edges),
    Check("mask_turns", "warning", "sampled stretches and model calls are not as many", mask_turns),
    Check("logprob_length", "error", "there is not one logprob per response token", logprob_length),
    Check("logprob_missing", "error", "a sampled token has no finite logprob", logprob_missing),
    Check("logprob_positive", "error", "a logprob is above 0", logprob_positive),
    Check("logprob_on_masked", "error", "logprobs stand where nothing was sampled", logprob_on_masked),
    Check("logprob_zeros", "warning", "the logprobs of a long response are all 0", logprob_zeros),
    Check("logprob_constant", "warning", "all logprobs are the same number", logprob_constant),
    Check("logprob_coarse", "note", "the logprobs were rounded to bfloat16", logprob_coarse),
    Check("train_logprobs", "error", "sampler's and trainer's logprobs do not go together", train_logprobs),
    Check("token_ids", "error", "an id is outside the vocabulary", token_ids),
    Check("token_counts", "error", "the arrays are not as long as declared, or empty", token_counts),
    Check("trained_unsampled", "error", "tokens are trained on that nobody sampled", trained_unsampled),
    Check("advantages_uneven", "warning", "the advantage changes inside a trace", advantages_uneven),
)
"""Checks of token arrays."""
