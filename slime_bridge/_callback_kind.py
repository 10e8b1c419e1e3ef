"""What becomes of requests to the callback listener."""

from __future__ import annotations

import enum

__all__ = ["CallbackKind"]


class CallbackKind(enum.StrEnum):
    """What became of a request to the listener; keys of `CallbackListener.counts`."""

    ACCEPTED = "accepted"
    """A body for a waiting attempt."""

    LATE = "late"
    """A body for an attempt that ended without it; acknowledged and dropped."""

    DUPLICATE = "duplicate"
    """A second body for an attempt; acknowledged and dropped."""

    FOREIGN = "foreign"
    """A body with another task's id; refused with 404."""

    FORGED = "forged"
    """A path that was never handed out; refused with 404 unread."""

    MALFORMED = "malformed"
    """Not HTTP, not a POST, not a JSON object, or no result of the task."""

    OVERSIZED = "oversized"
    """A body above the limit; refused with 413."""

    SLOW = "slow"
    """A request that did not arrive in time; answered 408."""

    CUT = "cut"
    """A connection that ended before its request did."""

    REFUSED = "refused"
    """A connection above the limit, closed at once; or a body that there is no memory for, answered 503."""
