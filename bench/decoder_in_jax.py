"""The Llama of capture.py in plain jax.numpy, and its captures by JAX.

The layers are a Python loop, so that every one of them is traced, as torch's tools do it. Loss and
gradients are those of the model of transformers, up to rounding. JAX gets shapes and types in the
place of arrays. It keeps the trace of a function by the function's identity: each capture makes a
new one. The traces of its own functions (`jnp.where`, `jax.nn.silu`) it keeps, as torch its caches.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from torch import Tensor, nn

HEADS, EPSILON, BASE = 4, 1e-6, 10_000.0

# A layer's weights: the name here, the name in the model.
LAYER = {
    "before attention": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "before mlp": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
Layer = dict[str, Array]
Parameters = dict[str, Any]  # "embedding", "norm", "head": arrays; "layers": a list of Layer


# ------------------------------------------------------------------------------------- the model


def norm(weight: Array, x: Array) -> Array:
    """RMS norm over the last dimension."""
    return weight * (x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + EPSILON))


def rotary(length: int, size: int) -> tuple[Array, Array]:
    """Cosine and sine of each position's angles: [length, size] each."""
    frequencies = 1.0 / BASE ** (jnp.arange(0, size, 2) / size)
    angles = jnp.arange(length)[:, None] * jnp.concatenate([frequencies, frequencies])
    return jnp.cos(angles), jnp.sin(angles)


def turned(x: Array, cos: Array, sin: Array) -> Array:
    """The rotary embedding of queries or keys."""
    first, second = jnp.split(x, 2, axis=-1)
    return x * cos + jnp.concatenate([-second, first], axis=-1) * sin


def attention(layer: Layer, x: Array, cos: Array, sin: Array) -> Array:
    """Causal self-attention: [batch, length, hidden] to the same."""
    batch, length, hidden = x.shape
    heads = (batch, length, HEADS, hidden // HEADS)
    query, key, value = (
        (x @ layer[name].T).reshape(heads).swapaxes(1, 2) for name in ("query", "key", "value")
    )
    query, key = turned(query, cos, sin), turned(key, cos, sin)
    scores = query @ key.swapaxes(2, 3) * heads[-1] ** -0.5
    seen = jnp.tril(jnp.ones((length, length), dtype=bool))
    shares = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    return (shares @ value).swapaxes(1, 2).reshape(x.shape) @ layer["output"].T


def mlp(layer: Layer, x: Array) -> Array:
    """SwiGLU: [batch, length, hidden] to the same."""
    return (jax.nn.silu(x @ layer["gate"].T) * (x @ layer["up"].T)) @ layer["down"].T


def forward(parameters: Parameters, tokens: Array, labels: Array) -> tuple[Array, Array]:
    """The loss, a mean over all tokens but the first, and the logits."""
    x = parameters["embedding"][tokens]
    cos, sin = rotary(tokens.shape[1], x.shape[-1] // HEADS)
    for layer in parameters["layers"]:
        x = x + attention(layer, norm(layer["before attention"], x), cos, sin)
        x = x + mlp(layer, norm(layer["before mlp"], x))
    logits = norm(parameters["norm"], x) @ parameters["head"].T
    shares = jax.nn.log_softmax(logits[:, :-1], axis=-1)
    return -jnp.take_along_axis(shares, labels[:, 1:, None], axis=-1).mean(), logits


# ---------------------------------------------------------------------------------- the captures


def tree(weights: Mapping[str, Any]) -> Parameters:
    """The model's weights, by their names in it, as `forward` takes them."""
    depth = sum(name.endswith(LAYER["query"] + ".weight") for name in weights)
    return {
        "embedding": weights["model.embed_tokens.weight"],
        "layers": [
            {ours: weights[f"model.layers.{i}.{its}.weight"] for ours, its in LAYER.items()}
            for i in range(depth)
        ],
        "norm": weights["model.norm.weight"],
        "head": weights["lm_head.weight"],
    }


def shaped(tensor: Tensor) -> jax.ShapeDtypeStruct:
    """A tensor's shape and its type in JAX, which has 32 bits unless told otherwise."""
    dtype = jnp.float32 if tensor.is_floating_point() else jnp.int32
    return jax.ShapeDtypeStruct(tuple(tensor.shape), dtype)


def inputs(model: nn.Module, kwargs: Mapping[str, Tensor]) -> tuple[Any, ...]:
    """The arguments of `forward`, without data."""
    weights = {name: shaped(weight) for name, weight in model.named_parameters()}
    return tree(weights), shaped(kwargs["input_ids"]), shaped(kwargs["labels"])


def joint(model: nn.Module, kwargs: Mapping[str, Tensor]) -> object:
    """The jaxpr of the loss and the gradients of all parameters, traced anew."""

    def loss(parameters: Parameters, tokens: Array, labels: Array) -> Array:
        return forward(parameters, tokens, labels)[0]

    return jax.make_jaxpr(jax.value_and_grad(loss))(*inputs(model, kwargs))


def export(model: nn.Module, kwargs: Mapping[str, Tensor]) -> object:
    """The jaxpr of the forward, traced anew."""

    def step(parameters: Parameters, tokens: Array, labels: Array) -> tuple[Array, Array]:
        return forward(parameters, tokens, labels)

    return jax.make_jaxpr(step)(*inputs(model, kwargs))
