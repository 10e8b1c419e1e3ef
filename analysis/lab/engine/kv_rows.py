"""Keys and values of running and finished requests, one row each, and which tokens each row stands for.

Rows 0 .. R-1 belong to the R running requests, without gaps: a decode step then reads plain slices instead of
gathering rows, which is what most of its time would go to. The rows behind them keep finished requests for
reuse: a new prompt takes over the longest beginning that any row holds, be it the earlier turns of its
conversation or the same prompt asked by another member of its group.

Knows tokens, not requests; the caller says which row is whose.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from analysis.lab.model import ModelConfig

__all__ = ["KVRows"]

_NO_TOKEN = -1
_FIRST_CAPACITY = 256


class KVRows:
    """Tensors of keys and values, with a table of the tokens that they were computed from.

    Parameters
    ----------
    config
        Sizes of the model.
    max_running
        Rows for running requests.
    max_retained
        Rows for finished ones; 0 switches their reuse off.
    share
        Whether rows are shared at all; False makes `longest_prefix` find nothing.

    Attributes
    ----------
    keys, values
        (layers, rows, G, capacity, D), float32. Never uninitialised memory: a hidden position still takes
        part in a product with weight zero, and zero times not-a-number would spoil the result.
    tokens
        (rows, capacity), int32: the token at each position whose key and value are held, -1 elsewhere.
    """

    def __init__(
        self, config: ModelConfig, *, max_running: int, max_retained: int, share: bool = True
    ) -> None:
        self.max_running = max_running
        self.max_retained = max_retained if share else 0
        self._share = share
        self._config = config
        self._retained_use: dict[int, int] = {}
        self._clock = 0
        self.capacity = min(_FIRST_CAPACITY, config.max_positions)
        self.keys, self.values, self.tokens = self._allocate(self.capacity)

    @property
    def rows(self) -> int:
        """Number of rows, running and retained."""
        return self.max_running + self.max_retained

    @property
    def retained_rows(self) -> int:
        """Rows that hold a finished request."""
        return len(self._retained_use)

    def _allocate(self, capacity: int) -> tuple[Tensor, Tensor, np.ndarray]:
        config = self._config
        shape = (config.num_layers, self.rows, config.num_kv_heads, capacity, config.head_dim)
        return (
            torch.zeros(shape),
            torch.zeros(shape),
            np.full((self.rows, capacity), _NO_TOKEN, dtype=np.int32),
        )

    def ensure_capacity(self, length: int) -> None:
        """Make room for sequences of `length` tokens; what is held stays."""
        if length <= self.capacity:
            return
        capacity = self.capacity
        while capacity < length:
            capacity = min(2 * capacity, self._config.max_positions)
        keys, values, tokens = self._allocate(capacity)
        keys[:, :, :, : self.capacity] = self.keys
        values[:, :, :, : self.capacity] = self.values
        tokens[:, : self.capacity] = self.tokens
        self.keys, self.values, self.tokens, self.capacity = keys, values, tokens, capacity

    def longest_prefix(self, tokens: np.ndarray) -> tuple[int, int]:
        """Find the row that holds the longest beginning of `tokens`, int32 (T,); give row and length."""
        if not self._share or len(tokens) == 0:
            return 0, 0
        # Sequences longer than the capacity cannot match beyond it.
        tokens = tokens[: self.capacity]
        differs = self.tokens[:, : len(tokens)] != tokens
        lengths = np.where(differs.any(axis=1), differs.argmax(axis=1), len(tokens))
        row = int(lengths.argmax())
        if lengths[row] > 0 and row in self._retained_use:
            self._touch(row)
        return row, int(lengths[row])

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of a row; the rest of the target counts as empty."""
        if source != target:
            self.keys[:, target, :, :length] = self.keys[:, source, :, :length]
            self.values[:, target, :, :length] = self.values[:, source, :, :length]
            self.tokens[target, :length] = self.tokens[source, :length]
        self.tokens[target, length:] = _NO_TOKEN

    def record(self, row: int, start: int, tokens: Sequence[int] | np.ndarray) -> None:
        """Note that positions from `start` on now hold these tokens."""
        self.tokens[row, start : start + len(tokens)] = tokens

    def retain(self, row: int) -> None:
        """Keep a finished request's row for reuse, in place of the one that was unused for longest."""
        length = int((self.tokens[row] != _NO_TOKEN).sum())
        if self.max_retained == 0 or self.tokens[row, 0] == _NO_TOKEN:
            return
        target = self._oldest_retained()
        self.copy(row, target, length)
        self._touch(target)

    def clear(self, row: int, *, zero: bool = False) -> None:
        """Empty a row; `zero` also wipes numbers that may not be finite."""
        self.tokens[row] = _NO_TOKEN
        if zero:
            self.keys[:, row] = 0.0
            self.values[:, row] = 0.0

    def forget_retained(self) -> None:
        """Empty all rows of finished requests."""
        for row in self._retained_use:
            self.clear(row)
        self._retained_use.clear()

    def make_private(self, running: int) -> None:
        """Exclude the first `running` rows from sharing: weights that are no longer in use computed them."""
        self.tokens[:running] = _NO_TOKEN

    def _oldest_retained(self) -> int:
        if len(self._retained_use) < self.max_retained:
            return self.max_running + len(self._retained_use)
        return min(self._retained_use, key=self._retained_use.__getitem__)

    def _touch(self, row: int) -> None:
        self._clock += 1
        self._retained_use[row] = self._clock
