"""Task requests: what the bridge sends to a rollout server, written exactly.

A request holds only the fields that were set, in one fixed order, so that equal requests are equal bytes. The
module knows nothing of templates or configuration; it checks what every Polar server checks or, worse, does
not check.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from slime_bridge.errors import TemplateError

__all__ = ["TASK_ID_PATTERN", "TaskRequest", "encode_task_request", "safe_task_id", "validate_task_id"]

TASK_ID_PATTERN = "[A-Za-z0-9][A-Za-z0-9._-]{0,119}"
"""Task ids become directory names and URL segments on the server, which checks neither."""

_TASK_ID = re.compile(TASK_ID_PATTERN)
_UNSAFE = re.compile("[^A-Za-z0-9._-]+")
_MAX_TASK_ID = 120
_MAX_SUFFIX = 80


def validate_task_id(task_id: object) -> str:
    """Return `task_id` if it is safe as a path component and a URL segment.

    Raises
    ------
    TemplateError
        If it is not a string of `TASK_ID_PATTERN`.
    """
    if isinstance(task_id, str) and _TASK_ID.fullmatch(task_id):
        return task_id
    raise TemplateError(
        f"task id {_shorten(task_id)} is not usable as a path component: allowed are 1 to {_MAX_TASK_ID} "
        "letters, digits, '.', '_' and '-', the first one a letter or digit"
    )


def safe_task_id(rendered: str, *, suffix: str = "") -> str:
    """Make a task id out of whatever a template rendered to.

    An id that is already safe stays as it is. Otherwise each run of other characters becomes one ``-``, the
    text is cut to what fits, and ``-`` with eight hexadecimal digits of the SHA-256 of the original is put
    before the suffix, so that two different unsafe ids stay different.

    Parameters
    ----------
    rendered
        The rendered template; must not be blank.
    suffix
        What the id ends with, such as ``-a2``; unsafe characters in it are replaced too.

    Returns
    -------
    str
        A valid task id of at most 120 characters.

    Raises
    ------
    TemplateError
        If `rendered` is blank.
    """
    if not rendered.strip():
        raise TemplateError(
            "polar_task_id_template rendered to a blank string: put an id such as {rollout_id} into it"
        )
    original = rendered + suffix
    if _TASK_ID.fullmatch(original):
        return original
    digest = hashlib.sha256(original.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    tail = f"-{digest}{_UNSAFE.sub('-', suffix)[-_MAX_SUFFIX:]}"
    stem = _UNSAFE.sub("-", rendered).lstrip("-._")[: _MAX_TASK_ID - len(tail)] or "task"
    return stem + tail


class TaskRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One task as the rollout server takes it; a field left `msgspec.UNSET` is not sent.

    Parameters ---------- task_id, instruction, num_samples, timeout_seconds, runtime, agent, builder,
    evaluator, callback_url, metadata
        As in Polar's protocol; `timeout_seconds` is the execution budget of each session.
    dispatch_priority, early_stop_min_usable_sessions
        Understood by newer servers, ignored by older ones.
    extra
        Further keys of the payload, sent after the known ones as they are.
    """

    task_id: str
    instruction: str
    agent: dict[str, Any]
    num_samples: int | UnsetType = UNSET
    timeout_seconds: int | float | UnsetType = UNSET
    runtime: dict[str, Any] | None | UnsetType = UNSET
    builder: dict[str, Any] | UnsetType = UNSET
    evaluator: dict[str, Any] | None | UnsetType = UNSET
    callback_url: str | None | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    dispatch_priority: int | UnsetType = UNSET
    early_stop_min_usable_sessions: int | None | UnsetType = UNSET
    extra: dict[str, Any] = {}

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> TaskRequest:
        """Build a request from a rendered payload.

        Raises
        ------
        TemplateError
            If a required key is missing or a value has a type that the server would refuse; the message names
            the key.
        """
        known = {name: payload[name] for name in _FIELD_ORDER if name in payload}
        extra = {str(key): value for key, value in payload.items() if key not in _FIELD_ORDER}
        try:
            request = msgspec.convert({**known, "extra": extra}, cls, strict=False)
        except msgspec.ValidationError as exc:
            problem = f"the rendered task is not a Polar task request: {exc}"
        else:
            _check_request(request)
            return request
        raise TemplateError(problem)

    def replace(self, **changes: Any) -> TaskRequest:
        """Return a copy with some fields changed; the original stays as it was."""
        return msgspec.structs.replace(self, **changes)


_FIELD_ORDER = (
    "task_id",
    "instruction",
    "num_samples",
    "timeout_seconds",
    "runtime",
    "agent",
    "builder",
    "evaluator",
    "callback_url",
    "metadata",
    "dispatch_priority",
    "early_stop_min_usable_sessions",
)


def _check_request(request: TaskRequest) -> None:
    validate_task_id(request.task_id)
    if request.num_samples is not UNSET and request.num_samples < 1:
        raise TemplateError(f"task num_samples is {request.num_samples}: it must be at least 1")
    timeout = request.timeout_seconds
    if timeout is not UNSET and not (math.isfinite(timeout) and timeout > 0):
        raise TemplateError(f"task timeout_seconds is {timeout}: it must be a finite number above 0")
    named = [key for key in ("harness", "import_path") if request.agent.get(key)]
    if len(named) != 1:
        raise TemplateError(
            "task agent needs exactly one of `harness` and `import_path`, got "
            + (str(named) if named else "none")
        )


def encode_task_request(request: TaskRequest) -> bytes:
    """Encode a request as compact UTF-8 JSON: only what was set, in a fixed order, text unescaped.

    NumPy scalars and arrays, which data sources put into metadata, are sent as numbers and lists.

    Raises
    ------
    TemplateError
        If a value has no exact JSON form: NaN, an infinity, a key that is not a string, half a surrogate
        pair, a date or another object. The message names its path.
    """
    payload: dict[str, Any] = {}
    for name in _FIELD_ORDER:
        value = getattr(request, name)
        if value is not UNSET:
            payload[name] = value
    payload.update(request.extra)
    try:
        return msgspec.json.encode(_plain(payload, "task"))
    except RecursionError:
        problem = "the task request is too deeply nested or contains itself"
    except (OverflowError, ValueError) as exc:
        if isinstance(exc, TemplateError):
            raise
        problem = "the task request holds an integer that is too long: send it as a string"
    raise TemplateError(problem)


def _plain(value: Any, path: str) -> Any:
    """Return `value` as exact JSON builtins; the path names the offender in errors."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        if not value.isascii() and not _encodable(value):
            raise TemplateError(
                f"{path} holds half of a surrogate pair, which is no valid text: clean the data it came from"
            )
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise TemplateError(f"{path} is {value}: JSON has no such number")
        return value
    if isinstance(value, Mapping):
        return {_plain_key(key, path): _plain(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        return _plain(value.tolist(), path)
    raise TemplateError(
        f"{path} is a {type(value).__name__}, which has no JSON form: write it as a string or a number"
    )


def _plain_key(key: object, path: str) -> str:
    if isinstance(key, str) and (key.isascii() or _encodable(key)):
        return key
    raise TemplateError(
        f"{path} has the key {_shorten(key)}, which is not a string: quote it in the YAML file"
    )


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
