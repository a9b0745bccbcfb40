"""The arguments of a call, leaf by leaf, and what each is called."""

import inspect
from collections.abc import Callable, Iterator, Sequence, Set as AbstractSet
from types import FunctionType, MethodType
from typing import Any

import torch

from foretrace import torch_api
from foretrace.ir.pydata.containers import LEAVES, Structure, flatten, named_leaves
from foretrace.ir.pydata.object_containers import object_attributes
from foretrace.ir.source.signatures import signature_of


def leaves_of(args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[Any]:
    """Leaves of the arguments of a call, in their order.

    Raises:
        Refusal: as `named_leaves`.
    """
    for each in (*args, *kwargs.values()):
        yield from flatten(each)[0]


def named_arguments(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    whole: AbstractSet[int] = frozenset(),
) -> Any:
    """Leaves of the arguments, named as the signature names them; `whole` as `named_leaves`.

    The structure has what is among them twice.
    """
    names = positional_names(fn, len(args))
    _, structure = flatten((tuple(args), kwargs), whole)
    pairs = [*zip(names, args, strict=True), *kwargs.items()]
    named = [pair for name, arg in pairs for pair in named_leaves(arg, name, whole)[0]]
    return named, with_repeats(structure, (tuple(args), kwargs), whole)


def with_repeats(structure: Structure, call: Any, whole: AbstractSet[int]) -> Structure:
    """The structure of the arguments of a call with what is among them twice."""
    several = structure.nested > CALL.nested + 1
    return structure.with_repeats(call, whole) if several else structure


CALL = flatten(((), {}))[1]
"""The structure of a call without arguments"""


def containers_of(
    args: Sequence[Any], kwargs: dict[str, Any], whole: AbstractSet[int] = frozenset()
) -> list[Any]:
    """The containers and objects among the arguments, but tuples, and what is inside of `whole`."""
    found = list[Any]()

    def note(node: Any) -> bool:
        if type(node) in LEAVES:
            return False
        if torch_api.is_container(node) or object_attributes(node) is not None:
            found.append(node)
        return id(node) in whole

    waiting = [(*args, *kwargs.values())]
    while waiting:
        for leaf in torch_api.tree_leaves(waiting.pop(), note):
            if id(leaf) in whole or type(leaf) in LEAVES:
                continue
            if attributes := object_attributes(leaf):
                waiting.append(tuple(attributes.values()))
    return [each for each in found if not isinstance(each, tuple)]


def positional_names(fn: Callable[..., Any], count: int) -> list[str]:
    """Names of the first `count` positional arguments."""
    function: Any = fn.forward if isinstance(fn, torch.nn.Module) else fn
    bound = isinstance(function, MethodType)
    function = function.__func__ if bound else function
    if type(function) is FunctionType and not function.__dict__:  # a signature takes ten times that
        code = function.__code__
        named = code.co_varnames[: code.co_argcount]
        if count + bound <= len(named):
            return [*named[bound : count + bound]]
    try:
        parameters = list(signature_of(fn).parameters.values())
    except (TypeError, ValueError):
        return [f"arg{i}" for i in range(count)]
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in parameters if p.kind in kinds]
    rest = next((p.name for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL), "arg")
    return [*names, *(f"{rest}.{i}" for i in range(count - len(names)))][:count]
