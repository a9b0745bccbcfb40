"""The arguments of a call, leaf by leaf, and what each is called."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from foretrace.ir.pydata.containers import named_leaves
from foretrace.ir.source.signatures import signature_of


def leaves_of(args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[Any]:
    """Leaves of the arguments of a call, in their order.

    Raises:
        Refusal: as `named_leaves`.
    """
    for each in (*args, *kwargs.values()):
        yield from (leaf for _, leaf in named_leaves(each)[0])


def named_arguments(fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Leaves of the arguments, named as the signature names them."""
    names = positional_names(fn, len(args))
    _, structure = named_leaves((tuple(args), kwargs))
    named = [
        pair for name, arg in zip(names, args, strict=True) for pair in named_leaves(arg, name)[0]
    ]
    named += [pair for name, arg in kwargs.items() for pair in named_leaves(arg, name)[0]]
    return named, structure


def positional_names(fn: Callable[..., Any], count: int) -> list[str]:
    """Names of the first `count` positional arguments."""
    try:
        parameters = list(signature_of(fn).parameters.values())
    except (TypeError, ValueError):
        return [f"arg{i}" for i in range(count)]
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in parameters if p.kind in kinds]
    rest = next((p.name for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL), "arg")
    return [*names, *(f"{rest}.{i}" for i in range(count - len(names)))][:count]
