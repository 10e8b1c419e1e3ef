"""Colours of tokens by overlay and level, for light and dark grounds.

Text stands on all of them, so each keeps a contrast of at least 4.5 to the ink of its ground. Within a scale
lightness alone tells the levels apart; the signed scale is the figures' orange and purple.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["LEVEL_COLOURS"]

LEVEL_COLOURS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "amount-2": ("#fff3c9", "#3d3519"),
        "amount-3": ("#fde294", "#574608"),
        "amount-4": ("#f9c253", "#735400"),
        "amount-5": ("#ef9838", "#8f4f00"),
        "amount-6": ("#df7332", "#a83f0e"),
        "time-2": ("#e9f2fa", "#1d2b36"),
        "time-3": ("#d0e4f4", "#1f3a4e"),
        "time-4": ("#afd1ec", "#1f4966"),
        "time-5": ("#88bbe2", "#1e587f"),
        "time-6": ("#609fd4", "#205f8c"),
        "time-7": ("#4f92ca", "#25699a"),
        "signed-1": ("#e08a1e", "#9c5100"),
        "signed-2": ("#fab45c", "#864906"),
        "signed-3": ("#fdd9a8", "#61390f"),
        "signed-4": ("#feecd3", "#422c17"),
        "signed-6": ("#eae9f5", "#302e3d"),
        "signed-7": ("#d2cfe9", "#443f60"),
        "signed-8": ("#b3abd6", "#595084"),
        "signed-9": ("#9487c4", "#6a5da2"),
        "mask-2": ("#ececea", "#2c2f36"),
        "mask-3": ("#cfe5f5", "#1f4a68"),
        "mask-4": ("#fbe3b3", "#5f4510"),
        "versions-1": ("#cfe5f5", "#1f4a68"),
        "versions-2": ("#fbe3b3", "#5f4510"),
        "versions-3": ("#c3eadb", "#135443"),
        "versions-4": ("#f8d3ba", "#6b3417"),
        "versions-5": ("#f0d6e6", "#5c3a50"),
        "versions-6": ("#b9d2e4", "#2d3d52"),
        "versions-7": ("#e9cf8f", "#453619"),
        "versions-8": ("#a9d5c4", "#2b4038"),
    }
)
"""By ``<scale>-<level>``, for light and dark grounds; levels that are not here have the ground's colour."""
