"""Tensors labelled cuda, where there is none, and lines that tell what is called on them."""

from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from foretrace import torch_api

CUDA = torch.device("cuda", 0)


class Labelled(torch.Tensor):
    """A tensor labelled cuda."""

    __torch_function__ = torch_api.disabled_torch_function

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} passed by the mode")


def labelled(like: torch.Tensor, requires_grad: bool = False) -> torch.Tensor:
    return torch.Tensor._make_wrapper_subclass(
        Labelled,
        like.shape,
        strides=like.stride(),
        storage_offset=like.storage_offset(),
        dtype=like.dtype,
        device=CUDA,
        requires_grad=requires_grad,
    )


class Lines(torch_api.TorchDispatchMode):
    """One line a call: operator ("sdp" for "_scaled_dot_product"), shapes, constants."""

    def __init__(self) -> None:
        super().__init__()
        self._mode_key = torch_api.FAKE_MODE_KEY  # factories on cuda get here as well
        self.lines: list[str] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        named = [f"{name}={described(arg)}" for name, arg in kwargs.items() if name != "device"]
        name = func.name().removeprefix("aten::").replace("_scaled_dot_product", "sdp")
        self.lines.append(f"{name}({', '.join([*map(described, args), *named])})")
        if func._schema.name.endswith("_"):
            return args[0]
        if "attention" in name:
            kinds = [str(result.type) for result in func._schema.returns]
            return tuple(labelled(args[0]) if kind == "Tensor" else 0 for kind in kinds)
        if "device" in kwargs:
            kwargs = {**kwargs, "device": "meta"}
        trains = torch.is_grad_enabled() and any(arg.requires_grad for arg in tensors_in(args))
        args, kwargs = tree_map_only(torch.Tensor, to_meta, (args, kwargs))
        args = ["meta" if isinstance(arg, torch.device) else arg for arg in args]
        followed = partial(labelled, requires_grad=trains)
        return tree_map_only(torch.Tensor, followed, func(*args, **kwargs))


def tensors_in(args: Any) -> list[torch.Tensor]:
    return [arg for arg in tree_leaves(args) if isinstance(arg, torch.Tensor)]


def to_meta(tensor: torch.Tensor) -> torch.Tensor:
    memory = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    storage = torch.empty(
        tensor.storage_offset() + memory.untyped_storage().size() // memory.element_size(),
        dtype=tensor.dtype, device="meta",
    )  # fmt: skip
    return storage.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def described(arg: Any) -> str:
    if isinstance(arg, torch.Tensor):
        return "x".join(map(str, arg.shape)) or "()"
    if isinstance(arg, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in arg):
        return f"[{', '.join(map(described, arg))}]"
    return str(arg).removeprefix("torch.")
