"""The kernels that run, each with what its last bits can depend on.

Torch's execution trace notes every call that goes through the dispatcher, above and below autograd,
inside composite kernels, vmap and the engine: its schema, and the dtype, sizes and strides of each
operand. A dispatch mode sees less, and changes which C++ runs.

Two runs that call the same kernels over operands of the same sizes and strides have the same bits
on every processor, where they have them on one. So this finds on any machine what another one's
BLAS would show. Not compared: where memory begins, and the threads.
"""

import json
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch.profiler import ExecutionTraceObserver

from tests.support.kernels import computes, kernel

Call = tuple[str, tuple[Any, ...]]
"""An operator, in place or not, and what it is given"""

PYTHON: Final = ("PythonDispatchMode", "PythonSubclass")
"""Where torch hands a call to Python; the calls made there are noted on their own"""
WRITES: Final = "!)"
FOREACH: Final = "_foreach_"
"""On the CPU each of these is a loop over calls of its own"""
TENSOR: Final = re.compile(r"Tensor\((.*?)\)")
NONE: Final = "<None>"
UNDEFINED: Final = "nullptr (uninitialized"
ROUNDED_ONCE: Final = frozenset({
    "abs", "add", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "ceil", "clamp",
    "clamp_max", "clamp_min", "div", "eq", "floor", "floor_divide", "fmax", "fmin", "ge", "gt",
    "isinf", "isnan", "isneginf", "isposinf", "le", "logical_and", "logical_not", "logical_or",
    "logical_xor", "lt", "masked_fill", "maximum", "minimum", "mul", "ne", "neg", "reciprocal",
    "relu", "remainder", "round", "rsub", "sgn", "sign", "sqrt", "sub", "threshold",
    "threshold_backward", "trunc", "where",
})  # fmt: skip
"""Of real numbers: each element comes of one rounding, or of none, however operands lie"""
MOVED: Final = frozenset({
    "_assert_async", "_assert_scalar", "_conj_physical", "_efficientzerotensor",
    "_has_same_storage_numel", "_neg_view_copy", "_new_zeros_with_same_feature_meta",
    "_sparse_coo_tensor_with_dims_and_tensors", "_to_copy", "_unsafe_view", "all", "any", "arange",
    "cat", "complex", "detach_copy", "diag_embed", "equal", "eye", "flip", "gather", "index",
    "index_copy", "index_fill", "index_put", "index_select", "is_same_size", "item", "linspace",
    "masked_scatter", "masked_select", "new_empty", "new_full", "new_zeros", "nonzero", "put",
    "repeat", "roll", "scalar_tensor", "scatter", "select_backward", "select_copy",
    "slice_backward", "stack", "t_copy", "take", "tril", "triu", "unsafe_split",
    "unsafe_split_with_sizes", "view_copy",
})  # fmt: skip
"""Elements are moved, made or looked at"""
IGNORED: Final = frozenset({
    ("_index_put_impl", "unsafe"),  # whether indices were checked
    ("convolution_backward", "bias_sizes"),  # without a bias eager says [0], a graph None
    ("rrelu_with_noise_backward", "self_is_result"),  # it has the sign of what it is made of
})  # fmt: skip
"""Arguments that the values do not depend on"""
ACCUMULATES: Final = ("cumprod", "cumsum", "mean", "prod", "sum")
"""What computes in the dtype of its result, where none is named"""
ROUNDED: Final = ("float", "BFloat16", "double", "Half", "complex")
CODES: Final = {
    "float": "6",
    "double": "7",
    "c10::BFloat16": "15",
    "c10::Half": "5",
    "long int": "4",
}


def ran(fn: Callable[[], object]) -> Counter[Call]:
    """The kernels that a function runs, and how often."""
    return Counter(call for call in _calls(_traced(fn)) if not _is_exact(call))


def _traced(fn: Callable[[], object]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        observer = ExecutionTraceObserver().register_callback(str(path))
        observer.start()
        try:
            fn()
        finally:
            observer.stop()
            observer.unregister_callback()
        nodes: list[dict[str, Any]] = json.loads(path.read_text())["nodes"]
    return nodes


def _calls(nodes: list[dict[str, Any]]) -> Iterator[Call]:
    """What computes: not what hands on its operands, to Python, a level below or an overload."""
    children = defaultdict[int, list[dict[str, Any]]](list)
    for node in nodes:
        if node["id"] != node["ctrl_deps"]:
            children[node["ctrl_deps"]].append(node)
    for node in nodes:
        name = kernel(node["name"])
        if not node["name"].startswith("aten::") or name.startswith(FOREACH) or not computes(name):
            continue
        if _of_memory(node) and not _hands_on(node, children):
            given = _given(node)
            if not _empty(given):
                yield name, given


def _hands_on(node: dict[str, Any], children: Mapping[int, list[dict[str, Any]]]) -> bool:
    """Whether a call below does all that it does; under dual numbers one does the tangent alone."""
    below = children[node["id"]]
    alike = [each for each in below if kernel(each["name"]) == kernel(node["name"])]
    return (
        any(each["name"] in PYTHON for each in below)
        or any(_tensors(each) == _tensors(node) for each in alike)
        or any(WRITES in _schema(each) and WRITES not in _schema(node) for each in alike)
        or any(_hands_on(each, children) for each in alike)
    )


def _schema(node: dict[str, Any]) -> str:
    return next(str(each["value"]) for each in node["attrs"] if each["name"] == "op_schema")


def _of_memory(node: dict[str, Any]) -> bool:
    """Whether its operands are plain tensors: not those of a level of vmap, nor without memory."""
    devices = {device for *_, device in _tensors(node)}
    return devices.isdisjoint(("", "meta")) and "meta" not in node["inputs"]["values"]


def _tensors(node: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Its operands, by their numbers and where they lie; those in lists, too."""
    found = list[tuple[Any, ...]]()
    pairs = zip(node["inputs"]["values"], node["inputs"]["types"], strict=True)
    for value, kind in pairs:
        if TENSOR.match(kind) and UNDEFINED not in kind:
            found.append(tuple(value))
        elif kind.startswith("GenericList[") and "Tensor(" in kind:
            found += [tuple(each) for each in value if isinstance(each, list) and len(each) == 6]
    return found


def _is_exact(call: Call) -> bool:
    """Whether it gives the same bits however operands lie: whole numbers, for one."""
    name, given = call
    said = str(given)
    if name in MOVED or not any(kind in said for kind in ROUNDED):
        return True
    return name in ROUNDED_ONCE and "complex" not in said


def _given(node: dict[str, Any]) -> tuple[Any, ...]:
    """Operands and numbers, but not where results go, nor a generator."""
    name, given = kernel(node["name"]), node["inputs"]
    every = zip(*(given[each] for each in ("values", "types", "shapes", "strides")), strict=True)
    schema = _schema(node)
    if not schema:  # of a few that C++ calls by name
        return tuple(_operand(*each) for each in every)
    said = zip(torch._C.parse_schema(schema).arguments, every, strict=True)
    operands, outs = dict[str, Any](), list[Any]()
    for argument, each in said:
        if argument.kwarg_only and argument.alias_info and argument.alias_info.is_write:
            outs.append(_operand(*each))
        elif argument.name != "generator" and (name, argument.name) not in IGNORED:
            operands[argument.name] = _operand(*each)
    if operands.get("dtype") == NONE and name in ACCUMULATES:
        of = [*outs, *operands.values()][0]
        operands["dtype"] = CODES.get(of[0], NONE)
    return tuple(operands.values())


def _operand(value: Any, kind: str, shape: Any, strides: Any) -> Any:
    if kind.startswith("GenericList[") and "Tensor(" in kind:
        kinds = re.findall(r"Tensor\([^()]*(?:\([^()]*\))?[^()]*\)|None", kind)
        return tuple(map(_operand, value, kinds, shape, strides))
    found = TENSOR.match(kind)
    if found is None:
        return str(value)
    if found[1].startswith(UNDEFINED):
        return NONE
    steps = [step if size > 1 else 0 for size, step in zip(shape, strides, strict=True)]
    return found[1], tuple(shape), tuple(steps)


def _empty(given: tuple[Any, ...]) -> bool:
    """Whether the first operand has no elements."""
    first = given[0] if given else ()
    return isinstance(first, tuple) and len(first) == 3 and 0 in first[1]
