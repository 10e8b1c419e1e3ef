"""The trainable policy: a checkpoint's weights as PyTorch parameters, run by the engine's own forward pass.

Trainer and engine share one set of formulas, so at equal weights their log-probabilities agree to float32
precision and the importance ratio is one. Knows nothing about losses or rollouts.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from analysis.lab.checkpoint import load_config, load_parameters, save_parameters
from analysis.lab.model import Weights, rotary_table, token_logprobs

__all__ = ["CheckpointPolicy"]


class CheckpointPolicy:
    """The weights of a checkpoint folder, ready to be trained.

    Parameters
    ----------
    folder
        A Hugging Face folder as `analysis.lab.checkpoint` writes it.
    """

    def __init__(self, folder: Path) -> None:
        self.config = load_config(folder)
        self._named = {
            name: torch.nn.Parameter(tensor) for name, tensor in load_parameters(folder, self.config).items()
        }
        self._rotary = rotary_table(self.config)

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """Give the weights that an optimiser may own."""
        return self._named.values()

    def log_probs(self, tokens: torch.Tensor, *, temperature: float = 1.0) -> torch.Tensor:
        """Give the log-probability of `tokens[:, 1:]` given what stands before, shape ``[rows, length - 1]``.

        Parameters
        ----------
        tokens
            Token ids ``[rows, length]``, padded on the right with any id.
        temperature
            Divides the logits.
        """
        return token_logprobs(
            Weights.fuse(self._named, self.config, self._rotary), tokens, temperature=temperature
        )

    def save(self, folder: Path) -> Path:
        """Replace the weights file of `folder` in one step; return the file."""
        return save_parameters(folder, self._named, tied=self.config.tie_word_embeddings)
