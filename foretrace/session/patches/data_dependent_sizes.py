"""Open sizes in Python's hands, as lengths of factories.

The binding of `torch.linspace` asks a symbol for its number, which fixes the size. Here such a call
is recorded without it: the graph has the number when it runs.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from foretrace import torch_api
from foretrace.tracer.recorder.recorder import Recorder


def taking_steps(recorder: Recorder) -> dict[str, Callable[..., Any]]:
    """Stand-ins for functions of torch that make as many elements as a plain int says."""
    return {name: partial(_called, recorder, name, vars(torch)[name]) for name in torch_api.STEPS}


def taking_rates(recorder: Recorder) -> dict[str, Callable[..., Any]]:
    """Stand-ins for the updates of fused optimizers, which take an open `lr` as a tensor.

    Their kernels read the number of it, so that the update is that of a float.
    """

    def taking(original: Callable[..., Any]) -> Callable[..., Any]:
        def update(*args: Any, **kwargs: Any) -> Any:
            if isinstance(kwargs.get("lr"), torch.SymFloat) and torch_api.sees_calls(recorder):
                rate = torch.scalar_tensor(kwargs["lr"], dtype=torch.float64, device="cpu")
                kwargs = {**kwargs, "lr": rate}
            return original(*args, **kwargs)

        return update

    return {name: taking(vars(torch)[name]) for name in torch_api.FUSED}


def _called(
    recorder: Recorder, name: str, original: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    packet = getattr(torch.ops.aten, name)
    plain = torch_api.function_modes() or not torch_api.sees_calls(recorder)
    if plain or not any(isinstance(item, torch.SymInt) for item in (*args, *kwargs.values())):
        return original(*args, **kwargs)
    if kwargs.get("requires_grad", False) is False:
        kwargs.pop("requires_grad", None)
    for func in map(partial(getattr, packet), packet.overloads()):
        if _fits(func, args, kwargs):
            return recorder.again(func, args, kwargs)
    return original(*args, **kwargs)


def _fits(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an overload takes these arguments."""
    arguments = torch_api.schema_of(func).arguments
    positional = [each.name for each in arguments if not each.kwarg_only]
    bound = {**dict(zip(positional, args, strict=False)), **kwargs}
    if len(args) > len(positional) or len(bound) < len(args) + len(kwargs):
        return False
    known = {each.name: each for each in arguments}
    required = {name for name, each in known.items() if not each.has_default_value()}
    tensors = {name for name, each in known.items() if isinstance(each.type, torch.TensorType)}
    if not required <= bound.keys() <= known.keys() or any(each.is_out for each in arguments):
        return False
    return all(isinstance(item, torch.Tensor) == (name in tensors) for name, item in bound.items())
