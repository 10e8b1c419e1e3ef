"""One session as a plain record for people: what it was asked, what it answered, what it earned.

For artifacts and example files, which leave the process: texts are bounded, and credentials are taken out by
the shape of the text and by the name of the entry that holds them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from slime_bridge import sample_view
from slime_bridge.redaction import redact

__all__ = ["MAX_TEXT", "redacted", "session_hash", "session_record"]

MAX_TEXT = 1_000_000
"""Characters that are kept of each text."""


def session_hash(session_id: Any) -> str:
    """Return 16 hexadecimal digits that tell sessions apart.

    A session id doubles as the agent's API key, so where it is published this takes its place.
    """
    return hashlib.sha256(str(session_id).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def session_record(samples: Sequence[Any]) -> dict[str, Any]:
    """Describe a session by its samples, at least one; the session is named by its `session_hash`."""
    first = sample_view.polar_metadata(samples[0])
    return {
        "session": session_hash(first.get("session_id")),
        "task_id": first.get("task_id"),
        "group_index": sample_view.group_of(samples[0]),
        "policy_version": sample_view.policy_version(samples[0]),
        "policy_staleness": first.get("policy_staleness"),
        "response_tokens": sum(map(sample_view.response_tokens, samples)),
        "traces": [
            {
                "trace_index": sample_view.polar_metadata(sample).get("trace_index"),
                "status": sample_view.status_name(sample),
                "reward": sample.reward,
                "response_tokens": sample_view.response_tokens(sample),
                "trainable_tokens": sample_view.trainable_tokens(sample),
                "prompt": sample.prompt,
                "response": sample.response,
            }
            for sample in samples
        ],
    }


def redacted(value: Any, *, secrets: Sequence[str] = ()) -> Any:
    """Return a copy of plain containers with bounded texts and without credentials.

    Parameters
    ----------
    value
        Mappings, lists and scalars.
    secrets
        Texts to remove wherever they stand.
    """
    if isinstance(value, str):
        return redact(value[:MAX_TEXT], secrets=secrets)
    if isinstance(value, Mapping):
        return {
            key: "***" if isinstance(item, str) and _names_a_secret(key) else redacted(item, secrets=secrets)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [redacted(item, secrets=secrets) for item in value]
    return value


def _names_a_secret(key: Any) -> bool:
    return redact(f"{key}: value").endswith("***")
