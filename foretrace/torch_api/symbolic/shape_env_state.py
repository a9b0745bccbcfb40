"""A ShapeEnv as data: copied, stored, and restored from what was stored."""

from collections.abc import Collection, Mapping
from importlib import import_module
from typing import Any

import sympy

# A guard of a ShapeEnv's is an expression and the place that it comes from.
from torch._guards import ShapeGuard, SLoc

# A ShapeEnv, its assertions, and the place that a range comes from.
from torch.fx.experimental.symbolic_shapes import (
    RuntimeAssert,
    ShapeEnv,
    ValueRangesSLoc,
)

# What a symbol of a ShapeEnv stands for: a size, a float, ...
from torch.utils._sympy.symbol import SymT, symbol_is_type

# Lower and upper bound of a symbol, as ShapeEnv takes them.
from torch.utils._sympy.value_ranges import ValueRanges

# Where an assertion of a ShapeEnv's comes from.
from torch.utils._traceback import CapturedTraceback

from foretrace.torch_api.symbolic.shape_env import (
    note_names,
    note_value,
    symbol_values,
    values_from_data,
)


def specialize_floats(shape_env: ShapeEnv) -> None:
    """Let Dynamo start again with its open Python floats fixed, if there are any.

    It passes such a float as a tensor that the graph calls `item()` on; AOTAutograd, too, asks for
    a restart where it cannot compute with the tensor instead.
    """
    names = [str(s) for s in symbol_values(shape_env) if symbol_is_type(s, SymT.FLOAT)]
    state: Any = import_module("torch._dynamo.symbolic_convert").TensorifyState if names else None
    new = [name for name in names if not state.should_specialize(name)]
    if new:
        for name in new:
            state.specialize(name)
        raise import_module("torch._dynamo.exc").TensorifyScalarRestartAnalysis


def env_state(shape_env: Any) -> dict[str, dict[Any, Any]]:
    """What a ShapeEnv knows of its symbols: numbers, ranges, and what each was found equal to."""
    data = values_from_data(shape_env)
    return {
        "values": {s: int(n) for s, n in symbol_values(shape_env).items() if s not in data},
        "data": data,
        "ranges": {s: (r.lower, r.upper) for s, r in shape_env.var_to_range.items()},
        "equal": dict(shape_env.replacements),
        "lengths": dict.fromkeys(shape_env.size_like, True),
        "axioms": dict(shape_env.axioms),
        "divisible": dict.fromkeys(shape_env.divisible, True),
        "deferred": {
            each.expr: (symbol, str(each.msg))
            for symbol, found in shape_env.deferred_runtime_asserts.items()
            for each in found
        },
    }


def restore_env(shape_env: Any, state: Mapping[str, Any], guards: Collection[Any]) -> None:
    """Let a new ShapeEnv know what `env_state` gave of another, and have its guards.

    Source: the attributes that `copied_env` copies. A guard, an assertion and the range of a symbol
    have the place that they come from (`SLoc`), of which nobody here asks (2.13).
    """
    where: Any = SLoc("", "")
    known = "backed_var_to_val" if hasattr(shape_env, "backed_var_to_val") else "var_to_val"
    getattr(shape_env, known).update({s: sympy.Integer(n) for s, n in state["values"].items()})
    ranges = {symbol: ValueRanges(*limits) for symbol, limits in state["ranges"].items()}
    shape_env.var_to_range.update(ranges)
    note_names(shape_env, ranges)
    shape_env.replacements.update(state["equal"])
    shape_env.size_like.update(state["lengths"])
    shape_env.var_to_range_sloc.update({s: ValueRangesSLoc(where, where) for s in ranges})
    shape_env.axioms.update(state["axioms"])
    shape_env.divisible.update(state["divisible"])
    for symbol, number in state["data"].items():
        note_value(shape_env, symbol, number)
    for condition, (about, said) in state["deferred"].items():
        created = RuntimeAssert(condition, said, CapturedTraceback.extract())
        shape_env.deferred_runtime_asserts.setdefault(about, []).append(created)
    shape_env.num_deferred_runtime_asserts += len(state["deferred"])
    shape_env.guards.extend(ShapeGuard(each, where, size_oblivious=False) for each in guards)
