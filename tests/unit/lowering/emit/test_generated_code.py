"""Generated code runs, and passes on what it was given: every kind of argument, every size."""

import math
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sympy
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, fx
from torch.fx.experimental.sym_node import SymNode
from torch.utils._sympy import functions as sizes
from torch.utils._sympy.interp import handlers

import foretrace
from foretrace.lowering.emit.fx_sizes import write_size
from foretrace.lowering.emit.python_sizes import SPACE, size_text
from tests.support.turns import one_in

# ---- arguments of operators ------------------------------------------------------------------

INF, NAN = float("inf"), float("nan")
FLOATS = [0.0, -0.0, 1.5, -2.0, INF, -INF, NAN, 5e-324, 1e308, 0.1]
COMPLEX = [
    complex(re, im) for re in (0.0, -0.0, 1.5, -INF, NAN) for im in (0.0, -0.0, -1.0, INF, NAN)
]
TENSOR = torch.arange(3.0)
GIVEN: dict[str, list[Any]] = {
    "Tensor": [TENSOR],
    "Tensor?": [TENSOR, None],
    "Tensor[]": [[], [TENSOR], [TENSOR, TENSOR]],
    "Tensor?[]": [[None, TENSOR], [None]],
    "int": [0, -1, 2**62, -(2**63)],
    "int?": [None, 3],
    "int[]": [[], [1], [1, -2, 3]],
    "int[]?": [None, [4]],
    "SymInt": [0, -5, 2**62],
    "SymInt[]": [[], [7, -7]],
    "float": FLOATS,
    "float?": [None, -0.0],
    "float[]": [[], FLOATS],
    "bool": [True, False],
    "bool?": [None, False],
    "bool[]": [[], [True, False]],
    "Scalar": [1, 1.0, True, *FLOATS, *COMPLEX],
    "Scalar?": [None, -1j],
    "Scalar[]": [[], [1, 2.0, -1j, complex(-0.0, NAN)]],
    "str": ["", 'it\'s "quoted"', "a\\b\n{x}", "\u00e9\u4e2d"],
    "str?": [None, "'"],
    "str[]": [[], ["a", "'"]],
    "Device": [torch.device("cpu")],
    "Device?": [None, torch.device("meta")],
    "Layout": [torch.strided],
    "Layout?": [None, torch.sparse_coo],
    "MemoryFormat": [torch.contiguous_format, torch.channels_last],
    "MemoryFormat?": [None, torch.preserve_format],
    "ScalarType": [torch.float32, torch.bool, torch.complex128, torch.float8_e4m3fn],
    "ScalarType?": [None, torch.bfloat16],
    "ScalarType[]": [[], [torch.int8, torch.half]],
    "Generator?": [None, torch.Generator().manual_seed(3)],
    "Dimname": [],  # named tensors are refused
}
"""What an operator may be given, by the type in its schema"""

LIBRARY = torch.library.Library("foretrace_tests_arguments", "DEF")
RECEIVED: list[Any] = []


def _defined(kind: str) -> Callable[..., Tensor]:
    """An operator with an argument of this type, that notes what arrives."""
    name = "given_" + "".join({"[": "_list", "?": "_or_none"}.get(c, c) for c in kind if c != "]")

    def call(x: Tensor, item: Any, *, named: Any) -> Tensor:
        RECEIVED.append((item, named))
        return x.clone()

    LIBRARY.define(f"{name}(Tensor x, {kind} item, *, {kind} named) -> Tensor")
    LIBRARY.impl(name, call, "CPU")
    torch.library.register_fake(
        f"foretrace_tests_arguments::{name}", lambda x, item, *, named: torch.empty_like(x)
    )
    found: Callable[..., Tensor] = getattr(torch.ops.foretrace_tests_arguments, name).default
    return found


OPERATORS = {kind: _defined(kind) for kind in GIVEN if GIVEN[kind]}


def _bits(item: Any) -> Any:
    """What tells arguments apart, to the last bit."""
    if isinstance(item, (list, tuple)):
        return [_bits(each) for each in item]
    if isinstance(item, complex):
        return struct.pack("dd", item.real, item.imag)
    if isinstance(item, float):
        return struct.pack("d", item)
    if isinstance(item, Tensor):
        return item.tolist()
    return type(item), id(item) if isinstance(item, torch.Generator) else item


def _received(call: Callable[[], object]) -> Any:
    RECEIVED.clear()
    call()
    ((item, named),) = RECEIVED
    return _bits(item), _bits(named)


def interpreted(module: fx.GraphModule, _: Any) -> Callable[..., Any]:
    return module


def _ways(fn: Callable[..., Tensor], x: Tensor) -> Iterator[tuple[str, Callable[[], object]]]:
    program = foretrace.capture(fn, (x,))
    yield "export cut", lambda: program.cut("export")(x)
    yield "aten cut", lambda: program.cut("aten")(x)
    yield "compile", lambda: foretrace.compile(fn, fullgraph=True)(x)
    yield "graph modules", lambda: foretrace.compile(fn, backend=interpreted, fullgraph=True)(x)


ARGUMENTS = [
    pytest.param(k, item, id=f"{k}-{n}") for k, all in GIVEN.items() for n, item in enumerate(all)
]


@pytest.mark.parametrize(("kind", "item"), one_in(2, ARGUMENTS))
def test_an_argument_arrives_as_it_was_given(kind: str, item: Any) -> None:
    def fn(x: Tensor) -> Tensor:
        return OPERATORS[kind](x, item, named=item)

    x = torch.randn(2)
    eager = _received(lambda: fn(x))
    for way, call in _ways(fn, x):
        assert _received(call) == eager, way


# ---- sizes -----------------------------------------------------------------------------------

a, b = sympy.symbols("a b", integer=True, positive=True)
RATIO, FLOAT = sizes.IntTrueDiv(a, b), sizes.ToFloat(a)
OPAQUE = [
    name for name in (method.removeprefix("sym_") for method in dir(SymNode))
    if hasattr(sizes, f"OpaqueUnaryFn_{name}")
]  # fmt: skip
EXPRESSIONS: list[Any] = [
    a + b - 3, -a, 2 * a * b, a**3, abs(a - b), sizes.FloorDiv(a + 1, b), sizes.FloorDiv(-a, 2),
    sizes.CleanDiv(a, b), sizes.CeilDiv(a, b), sizes.Mod(a, b), sizes.PythonMod(a - b, b),
    sizes.ModularIndexing(a, 2, 3), sizes.ModularIndexing(a, 1, 3), sizes.Max(a, b, 3),
    sizes.Min(a - b, 0), 2 * sizes.Max(a - b, 0) + 1, sympy.Min(a, b), sympy.Max(a, b),
    sizes.PowByNatural(a, b), sizes.LShift(a, b), sizes.RShift(a, b), RATIO, FLOAT,
    sizes.FloatTrueDiv(FLOAT, 3.0), sizes.FloatPow(FLOAT, sympy.Float(0.5)), FLOAT * 1.5,
    sizes.CeilToInt(RATIO), sizes.FloorToInt(RATIO), sizes.TruncToInt(RATIO), sympy.floor(a / b),
    sympy.ceiling(a / b), sizes.RoundToInt(RATIO), sizes.RoundDecimal(RATIO, sympy.Integer(2)),
    sizes.TruncToFloat(RATIO), sizes.Where(a > b, a, b), sizes.Identity(a + b),
    sympy.Piecewise((a, a > b), (b - a, b > 4), (3, True)), sympy.Eq(a, b), sympy.Ne(a, b + 1),
    a < b, a <= b, a > b, a >= b, sympy.And(a > 1, b >= 2, sympy.Ne(a, b)),
    sympy.Or(a < 2, sympy.Eq(b, 3)), sympy.Not(sympy.And(a > 1, b > 2)),
    sizes.BitwiseFn_bitwise_and(a, b), sizes.BitwiseFn_bitwise_or(a, b),
    sizes.BitwiseFn_bitwise_xor(a, b), sizes.IsNonOverlappingAndDenseIndicator(a, b, b, 1),
    *(getattr(sizes, f"OpaqueUnaryFn_{name}")(FLOAT / 64) for name in OPAQUE),
]  # fmt: skip
"""One for each function that a ShapeEnv's expressions may have, and some nested"""
SYMPYS_OWN = {"log", "exp", "cos", "sin", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan"}
"""Of sympy's own, which torch never makes of a size: it has opaque ones"""


def _by_graph(expr: Any, numbers: dict[Any, int]) -> Any:
    """The expression as nodes, by the code of their graph."""
    graph = fx.Graph()
    nodes = {symbol: graph.placeholder(str(symbol)) for symbol in numbers}
    for symbol, node in nodes.items():
        node.meta["val"] = numbers[symbol]

    def create(function: Callable[..., Any], args: tuple[Any, ...]) -> fx.Node:
        return graph.call_function(function, args)

    graph.output(write_size(expr, nodes, create))
    return fx.GraphModule(torch.nn.Module(), graph)(*numbers.values())


@pytest.mark.parametrize("expr", EXPRESSIONS, ids=str)
@settings(max_examples=12, deadline=None)
@given(first=st.integers(1, 9), second=st.integers(1, 9))
def test_a_size_is_the_same_in_code(expr: Any, first: int, second: int) -> None:
    numbers = {a: first, b: second}
    value, text = expr.subs(numbers), size_text(expr)
    for found in (eval(text, {**SPACE, "a": first, "b": second}), _by_graph(expr, numbers)):  # noqa: S307
        if value.is_Boolean:
            assert found is bool(value)
        elif value.is_integer and not isinstance(value, sympy.Float):
            assert (type(found), found) == (int, int(value))
        else:
            assert type(found) is float
            assert found == float(value) or math.isclose(found, float(value), rel_tol=1e-15)


def _functions(expr: Any) -> set[type]:
    return {type(part) for part in sympy.preorder_traversal(expr)}


def test_every_function_of_sizes_is_tried() -> None:
    tried = set().union(*map(_functions, EXPRESSIONS))
    known = {kind for kind, name in handlers().items() if name not in SYMPYS_OWN}
    made_into_others = {sympy.Mod}
    assert known - tried - made_into_others == set()


# ---- what is about the run, and no part of the program ------------------------------------------


def profiled(x: Tensor) -> Tensor:
    with torch.profiler.record_function("it's a part"):
        y = x * 2
    with torch.profiler.record_function("another", args="with arguments"):
        return y.sin()


class Profiled(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return profiled(x)


def test_a_name_for_the_profiler_is_left_out() -> None:
    x = torch.randn(3, requires_grad=True)
    program = foretrace.capture(profiled, (x,))
    assert program.cut("export").nodes == ("x", "mul", "sin", "output")
    assert foretrace.export(Profiled(), (x,)).graph_signature.user_outputs == ("sin",)
    ours = {node.target for node in foretrace.export(Profiled(), (x,)).graph.nodes}
    assert ours == {node.target for node in torch.export.export(Profiled(), (x,)).graph.nodes}


def weighted_rows(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    y = x * weights  # so the two have as many rows, by two symbols
    return y[0].sum(), y[0]


def test_a_backward_for_some_outputs_spells_sizes_as_they_are_known() -> None:
    call = foretrace.compile(
        weighted_rows, backend=lambda graph, _: graph, dynamic=True, fullgraph=True
    )
    for rows in (3, 5):
        x, weights = torch.randn(rows, 4, requires_grad=True), torch.randn(rows, 4)
        call(x, weights)[0].backward()
        expected = torch.zeros_like(weights)
        expected[0] = weights[0]
        assert x.grad is not None
        assert torch.equal(x.grad, expected)


def interpreting(module: torch.fx.GraphModule, inputs: object) -> Any:
    return lambda *args: torch.fx.Interpreter(module).run(*args)


@pytest.mark.parametrize("backend", [interpreting, "aot_eager", lambda module, inputs: module])
def test_complex_numbers_are_the_same_for_what_interprets_and_for_what_runs_code(backend: Any):
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * torch.full([3], -1j) + complex(-0.0, 2.0) * x - 1j * x.exp()

    x, tangent = torch.tensor([-0.0, 1.5, -2.0]), torch.tensor([1j, -1j, 2.0])
    compiled = foretrace.compile(program, backend=backend, fullgraph=True)
    for left, right in zip(*(
        (out := fn(leaf := x.clone().requires_grad_()), *torch.autograd.grad(out, leaf, tangent))
        for fn in (program, compiled)
    ), strict=True):  # fmt: skip
        assert left.dtype == right.dtype
        one, other = (t.detach().resolve_conj().view(torch.int32) for t in (left, right))
        assert torch.equal(one, other)
