"""A functional Qwen3 forward pass: one set of formulas for training, teacher forcing and cached decoding.

Weights come from the checkpoint under Hugging Face's parameter names and are fused (query, key and value;
gate and up) before use. Fusing is differentiable, so a trainer may fuse its own parameters at every step.
Knows nothing about sampling, requests or files. float32 throughout; agrees with Transformers' own model
within a few 1e-6.

Shapes: B sequences, T positions, H query heads, G key/value heads, D head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from analysis.errors import CheckpointError

__all__ = [
    "LayerWeights",
    "ModelConfig",
    "Weights",
    "causal_attention",
    "forward_hidden",
    "grouped_attention",
    "rotary_table",
    "sequence_logits",
    "token_logprobs",
]

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class ModelConfig:
    """The numbers of a Qwen3 architecture that the forward pass needs.

    Parameters
    ----------
    vocab_size, hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim
        Sizes, as in the checkpoint's ``config.json``.
    rope_theta
        Base of the rotary frequencies.
    rms_norm_eps
        Added to the mean square before the root.
    max_positions
        Longest sequence, in tokens.
    tie_word_embeddings
        Whether the output layer is the embedding.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float
    max_positions: int
    tie_word_embeddings: bool

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Any]) -> ModelConfig:
        """Read a checkpoint's ``config.json``, with the rotary base in its old or its new place.

        Raises
        ------
        CheckpointError
            When the architecture is not Qwen3, a size is missing, or it uses a feature that this pass lacks
            (rotary scaling, sliding windows, attention biases).
        """
        if raw.get("model_type") != "qwen3":
            raise CheckpointError(f"config.json has model_type {raw.get('model_type')!r}; not 'qwen3'")
        rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default" or raw.get("use_sliding_window") or raw.get("attention_bias"):
            raise CheckpointError(
                f"config.json asks for rope type {kind!r}, sliding window {raw.get('use_sliding_window')!r}, "
                f"attention bias {raw.get('attention_bias')!r}; none of these is supported"
            )
        theta = rope.get("rope_theta", raw.get("rope_theta"))
        try:
            return cls(
                vocab_size=int(raw["vocab_size"]),
                hidden_size=int(raw["hidden_size"]),
                intermediate_size=int(raw["intermediate_size"]),
                num_layers=int(raw["num_hidden_layers"]),
                num_heads=int(raw["num_attention_heads"]),
                num_kv_heads=int(raw["num_key_value_heads"]),
                head_dim=int(raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]),
                rope_theta=float(theta if theta is not None else 10000.0),
                rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
                max_positions=int(raw["max_position_embeddings"]),
                tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"config.json: size {error} is missing or not a number") from error

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every parameter under its Hugging Face name; a tied output layer is not listed."""
        hidden, inner, d = self.hidden_size, self.intermediate_size, self.head_dim
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, hidden)}
        for index in range(self.num_layers):
            prefix = f"model.layers.{index}."
            shapes |= {
                f"{prefix}input_layernorm.weight": (hidden,),
                f"{prefix}post_attention_layernorm.weight": (hidden,),
                f"{prefix}self_attn.q_proj.weight": (self.num_heads * d, hidden),
                f"{prefix}self_attn.k_proj.weight": (self.num_kv_heads * d, hidden),
                f"{prefix}self_attn.v_proj.weight": (self.num_kv_heads * d, hidden),
                f"{prefix}self_attn.o_proj.weight": (hidden, self.num_heads * d),
                f"{prefix}self_attn.q_norm.weight": (d,),
                f"{prefix}self_attn.k_norm.weight": (d,),
                f"{prefix}mlp.gate_proj.weight": (inner, hidden),
                f"{prefix}mlp.up_proj.weight": (inner, hidden),
                f"{prefix}mlp.down_proj.weight": (hidden, inner),
            }
        shapes["model.norm.weight"] = (hidden,)
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        return shapes

    def check_parameters(self, parameters: Mapping[str, Tensor]) -> None:
        """Raise `CheckpointError` naming the first parameter that is missing, unknown or of another shape."""
        shapes = self.parameter_shapes()
        for name, shape in shapes.items():
            if name not in parameters:
                raise CheckpointError(f"parameter {name} is missing")
            found = tuple(parameters[name].shape)
            if found != shape:
                raise CheckpointError(f"parameter {name} has shape {found}, not {shape}")
        for name in parameters:
            if name not in shapes and name != "lm_head.weight":
                raise CheckpointError(f"parameter {name} does not belong to this architecture")


@dataclass(frozen=True)
class LayerWeights:
    """One block's weights: `qkv` is (H + 2 G) D by hidden, `gate_up` is twice the inner size by hidden."""

    input_norm: Tensor
    qkv: Tensor
    q_norm: Tensor
    k_norm: Tensor
    out: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True)
class Weights:
    """A model's weights, fused for the forward pass, with its configuration and rotary table."""

    config: ModelConfig
    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor
    rotary: tuple[Tensor, Tensor]

    @classmethod
    def fuse(
        cls,
        parameters: Mapping[str, Tensor],
        config: ModelConfig,
        rotary: tuple[Tensor, Tensor] | None = None,
    ) -> Weights:
        """Fuse parameters under Hugging Face's names; gradients flow back to them.

        Parameters
        ----------
        parameters
            As in the checkpoint, without the ``lm_head.weight`` when it is tied.
        config
            The architecture that they belong to.
        rotary
            `rotary_table(config)`, to spare a trainer from computing it at every step.
        """

        def block(index: int) -> LayerWeights:
            def get(name: str) -> Tensor:
                return parameters[f"model.layers.{index}.{name}.weight"]

            return LayerWeights(
                input_norm=get("input_layernorm"),
                qkv=torch.cat([get("self_attn.q_proj"), get("self_attn.k_proj"), get("self_attn.v_proj")]),
                q_norm=get("self_attn.q_norm"),
                k_norm=get("self_attn.k_norm"),
                out=get("self_attn.o_proj"),
                post_norm=get("post_attention_layernorm"),
                gate_up=torch.cat([get("mlp.gate_proj"), get("mlp.up_proj")]),
                down=get("mlp.down_proj"),
            )

        embedding = parameters["model.embed_tokens.weight"]
        return cls(
            config=config,
            embedding=embedding,
            layers=tuple(block(index) for index in range(config.num_layers)),
            norm=parameters["model.norm.weight"],
            head=embedding if config.tie_word_embeddings else parameters["lm_head.weight"],
            rotary=rotary if rotary is not None else rotary_table(config),
        )


def rotary_table(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Cosine and sine per position, each (max_positions, D), in Qwen's form of two equal halves."""
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequency = 1.0 / config.rope_theta**exponent
    angle = torch.outer(torch.arange(config.max_positions, dtype=torch.float32), frequency)
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos(), angle.sin()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin


def forward_hidden(weights: Weights, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
    """Run all blocks and the final norm.

    Parameters
    ----------
    weights
        Fused weights.
    ids, positions
        Token ids and their positions, both (B, T).
    attend
        Called once per layer as ``attend(layer, query, key, value)`` with query (B, H, T, D) and key, value
        (B, G, T, D), rotary applied; returns the attention output (B, H, T, D). This is where a cache lives.

    Returns
    -------
    Tensor
        Hidden states (B, T, hidden); multiply by `weights.head` for logits.
    """
    config = weights.config
    heads, kv_heads, eps = config.num_heads, config.num_kv_heads, config.rms_norm_eps
    hidden, d = config.hidden_size, config.head_dim
    batch, length = ids.shape
    cos = weights.rotary[0][positions].unsqueeze(2)  # (B, T, 1, D)
    sin = weights.rotary[1][positions].unsqueeze(2)
    x = F.embedding(ids, weights.embedding)
    for index, layer in enumerate(weights.layers):
        qkv = F.linear(F.rms_norm(x, (hidden,), layer.input_norm, eps), layer.qkv)
        qkv = qkv.view(batch, length, heads + 2 * kv_heads, d)
        query, key, value = qkv.split([heads, kv_heads, kv_heads], dim=2)
        query = _rotate(F.rms_norm(query, (d,), layer.q_norm, eps), cos, sin).transpose(1, 2)
        key = _rotate(F.rms_norm(key, (d,), layer.k_norm, eps), cos, sin).transpose(1, 2)
        mixed = attend(index, query, key, value.transpose(1, 2))
        x = x + F.linear(mixed.transpose(1, 2).reshape(batch, length, heads * d), layer.out)
        gate, up = F.linear(F.rms_norm(x, (hidden,), layer.post_norm, eps), layer.gate_up).chunk(2, dim=-1)
        x = x + F.linear(F.silu(gate) * up, layer.down)
    return F.rms_norm(x, (hidden,), weights.norm, eps)


def grouped_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Softmax attention with shared key/value heads.

    Parameters
    ----------
    query
        (B, H, T, D).
    key, value
        (B, G, S, D) with G dividing H.
    mask
        Boolean, broadcastable to (B, 1, T, S); False hides a key. Each row needs one True.

    Returns
    -------
    Tensor
        (B, H, T, D).
    """
    batch, heads, length, d = query.shape
    kv_heads = key.shape[1]
    if heads != kv_heads:
        # The queries that share a key head are stacked along time: no copy of keys and values.
        query = query.reshape(batch, kv_heads, heads // kv_heads * length, d)
        mask = mask.expand(batch, 1, length, key.shape[2]).repeat(1, 1, heads // kv_heads, 1)
    scores = (query @ key.transpose(-1, -2)) * d**-0.5
    scores = scores.masked_fill(~mask, float("-inf"))
    return (scores.softmax(dim=-1) @ value).reshape(batch, heads, length, d)


def causal_attention(length: int) -> Attend:
    """Attention over whole sequences of `length` positions: each sees itself and what came before.

    Padding on the right needs no mask of its own, since no real position looks there.
    """
    mask = torch.ones(length, length, dtype=torch.bool).tril()

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return grouped_attention(query, key, value, mask)

    return attend


def sequence_logits(weights: Weights, ids: Tensor) -> Tensor:
    """Logits (B, T, V) of whole sequences `ids` (B, T), padded on the right with any id."""
    length = ids.shape[1]
    positions = torch.arange(length).expand_as(ids)
    return F.linear(forward_hidden(weights, ids, positions, causal_attention(length)), weights.head)


def token_logprobs(weights: Weights, ids: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Log-probability (B, T - 1) of each token of `ids` (B, T) given those before it.

    Logits are divided by `temperature` first. This is the teacher-forced pass that sampled log-probabilities
    are measured against.
    """
    logits = sequence_logits(weights, ids)[:, :-1] / temperature
    return logits.log_softmax(dim=-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
