"""What JSON has no word for: dtypes, devices, operators, functions of Python's, by their names."""

import operator
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final

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
"""Objects that are told by identity"""
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
"""Functions that an op may call which is no operator: steps with numbers"""
ENUMS: Mapping[str, type] = MappingProxyType(
    {
        "dtype": torch.dtype,
        "layout": torch.layout,
        "memory_format": torch.memory_format,
    }
)
NAME: Final = "torch."


def single(item: Any) -> str | None:
    """The name of an object that is told by identity."""
    return SINGLES.get(id(item))


def spell(item: Any) -> dict[str, Any] | None:
    """The object in words; None for one that has none."""
    kind, known = type(item), single(item)
    if known is not None:
        return {"single": known}
    for name, each in ENUMS.items():
        if kind is each:
            return {name: str(item).removeprefix(NAME)}
    if kind is torch.device:
        return {"device": str(item)}
    if isinstance(item, sympy.Basic):
        return {"size": number_json(item)}
    if isinstance(item, type) and TYPES.get(item.__name__) is item:
        return {"type": item.__name__}
    return _number(item) or _callable(item)


def _number(item: Any) -> dict[str, Any] | None:
    if type(item) is float:  # one that JSON has no word for
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


def read(word: str, told: Any) -> Any:
    """The object that the words mean.

    Raises:
        Refusal: there is none.
    """
    found = READERS[word](told) if word in READERS and type(told) in (str, list) else None
    if found is None:
        raise damaged(PROGRAM, f"there is no {word} {told!r:.60}")
    return found


@cache
def _found(name: str) -> Any:
    """The operator that is called so: "aten::add.Tensor"; None if there is none here."""
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


def check_schemas(told: Mapping[str, str]) -> None:
    """Refuse operators that take or return something else here.

    Raises:
        Refusal: one is not there, or has another schema.
    """
    for name, schema in told.items():
        now = str(torch_api.schema_of(_operator(name)))
        if now != schema:
            raise Refusal(
                f"{name} is another operator here: {now}, in the artifact {schema}",
                kind="unknown operator",
                do=f"load it under the torch that it was saved with, or save it with {TORCH}",
            )


TORCH: Final = f"torch {torch.__version__}"
