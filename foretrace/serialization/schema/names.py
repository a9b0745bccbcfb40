"""dtypes, devices, operators, Python functions and other objects as JSON, by name."""

import operator
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import sympy
import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.pydata.members import MISSING
from foretrace.ir.symbols.sym_float import ALONE, ARITHMETIC, COMPARED
from foretrace.lowering.emit.fx_sizes import FUNCTIONS as OF_SIZES, ROUNDING
from foretrace.lowering.emit.python_sizes import TEXTS
from foretrace.operators.abstract_tensors.subclass_types import DISPATCHED
from foretrace.operators.schemas.higher_order_schema import SIDES
from foretrace.serialization.schema.errors import PROGRAM, damaged
from foretrace.serialization.schema.sympy_json import number_json, number_of
from foretrace.tracer.functionalization.builder import LEAF
from foretrace.tracer.functionalization.out_variants import ITSELF

SINGLE: Mapping[str, Any] = MappingProxyType({
    "sides": SIDES, "dispatched": DISPATCHED, "itself": ITSELF, "leaf": LEAF, "missing": MISSING,
    "ellipsis": ..., "default generator": torch.default_generator,
})  # fmt: skip
"""Objects that are compared by identity"""
SINGLES: Mapping[int, str] = MappingProxyType({id(each): name for name, each in SINGLE.items()})
TYPES: Mapping[str, type] = MappingProxyType({
    each.__name__: each for each in
    (int, float, bool, complex, str, bytes, tuple, list, dict, set, frozenset, slice, type(None))
})  # fmt: skip
_TABLES: tuple[Mapping[str, Any], ...] = (
    OF_SIZES,
    ROUNDING,
    ARITHMETIC,
    ALONE,
    COMPARED,
    *torch_api.STEPS_OF_FLOATS,
    {each.__name__: each for each in (*TEXTS, operator.getitem, operator.not_)},
)
PYTHON: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {f"{each.__module__}.{each.__name__}": each for table in _TABLES for each in table.values()}
)
"""Functions on numbers that an op may have as its target"""
ENUMS: Mapping[str, type] = MappingProxyType(
    {kind.__name__: kind for kind in (torch.dtype, torch.layout, torch.memory_format)}
)


def single(item: Any) -> str | None:
    """The name of an object that is compared by identity; None for any other."""
    return SINGLES.get(id(item))


def named_json(item: Any) -> dict[str, Any] | None:
    """The object by name; None if it has no name in a file."""
    kind, known = type(item), single(item)
    if known is not None:
        return {"single": known}
    for name, each in ENUMS.items():
        if kind is each:
            return {name: str(item).removeprefix("torch.")}
    if kind is torch.device:
        return {"device": str(item)}
    if isinstance(item, sympy.Basic):
        return {"size": number_json(item)}
    if isinstance(item, type) and TYPES.get(item.__name__) is item:
        return {"type": item.__name__}
    return _number(item) or _callable(item)


def _number(item: Any) -> dict[str, Any] | None:
    if type(item) is float:  # JSON has no exact form
        return {"float": item.hex()}
    if type(item) is complex:
        return {"complex": [item.real.hex(), item.imag.hex()]}
    return {"bytes": item.hex()} if type(item) is bytes else None


def _callable(item: Any) -> dict[str, Any] | None:
    if isinstance(item, torch_api.OpOverload):
        return {"op": item.name()} if _found(item.name()) is item else None
    if isinstance(item, torch_api.HigherOrderOperator):
        name = item.name()
        return {"holder": name} if _holder(name) is item else None
    name = f"{getattr(item, '__module__', '')}.{getattr(item, '__name__', '')}"
    return {"python": name} if PYTHON.get(name) is item else None


def named_object(kind: str, name: Any) -> Any:
    """The object that `named_json` has named.

    Raises:
        Refusal: there is none.
    """
    found = READERS[kind](name) if kind in READERS and type(name) in (str, list) else None
    if found is None:
        raise damaged(PROGRAM, f"there is no {kind} {name!r:.60}")
    return found


@cache
def _found(name: str) -> Any:
    """The operator of a name such as "aten::add.Tensor"; None if this process has none."""
    space, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    if not torch_api.is_registered(name):
        return None
    found = getattr(getattr(getattr(torch.ops, space), packet), overload or "default", None)
    return found if isinstance(found, torch_api.OpOverload) else None


def _operator(name: str) -> Any:
    found = _found(name)
    if found is None:
        space = name.partition("::")[0]
        raise Refusal(
            f"the artifact calls {name}, which this process does not have",
            kind="unknown operator",
            do=f"import the library that registers {space} first",
        )
    return found


def _holder(name: str) -> Any:
    found = getattr(torch.ops.higher_order, name, None) if name.isidentifier() else None
    return found if isinstance(found, torch_api.HigherOrderOperator) else None


def _enum(kind: type) -> Callable[[str], Any]:
    def find(name: str) -> Any:
        found = vars(torch).get(name)
        return found if type(found) is kind else None

    return find


def _device(name: str) -> Any:
    try:
        return torch.device(name)
    except RuntimeError:
        return None


READERS: Mapping[str, Callable[[Any], Any]] = MappingProxyType({
    "single": SINGLE.get, "type": TYPES.get, "python": PYTHON.get, "op": _operator,
    "holder": _holder, "device": _device, "size": number_of, "float": float.fromhex,
    "bytes": bytes.fromhex, "complex": lambda parts: complex(*map(float.fromhex, parts)),
    **{name: _enum(kind) for name, kind in ENUMS.items()},
})  # fmt: skip


def schemas(operators: set[Any]) -> dict[str, str]:
    """The schema of each operator, by its name."""
    known = {each.name(): str(torch_api.schema_of(each)) for each in operators}
    return dict(sorted(known.items()))


def check_schemas(saved: Mapping[str, str]) -> None:
    """Refuse operators that this process lacks, or has with another schema.

    Raises:
        Refusal: with the first of them.
    """
    for name, schema in saved.items():
        now = str(torch_api.schema_of(_operator(name)))
        if now != schema:
            raise Refusal(
                f"{name} is another operator here: {now}, in the artifact {schema}",
                kind="unknown operator",
                do=f"load it under the torch that it was saved with, or save it with"
                f" torch {torch.__version__}",
            )
