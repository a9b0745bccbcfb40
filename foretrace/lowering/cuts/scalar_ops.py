"""Python's steps between numbers of data, for those who know few of them, or tensors alone."""

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, NoReturn

import sympy
import torch

from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.autograd.eager_history.op_facts import locate
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op, target_name
from foretrace.ir.program.origin import Choice
from foretrace.ir.program.recording import Graph
from foretrace.ir.program.rewriter import copy_ops
from foretrace.ir.program.walk import every_op
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.symbols.symbols import Symbols
from foretrace.ir.values.nested import leaves
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree, Value, values_in
from foretrace.lowering.cuts.dead_code import live, values_of
from foretrace.lowering.cuts.decomposition_tracer import Entries, EntryRecorder
from foretrace.operators.schemas.schema import schema_of

aten = torch.ops.aten

KNOWN: Final = frozenset({
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow, operator.neg, math.trunc, torch.sym_float, torch.sym_max, torch.sym_min,
})  # fmt: skip
"""What the reader of a file takes. Source: `_SYM_OPS` in torch/_export/serde/serialize.py"""
SYMBOLIC: Mapping[Callable[..., Any], Callable[..., Any]] = MappingProxyType(
    {math.sqrt: torch.sym_sqrt, operator.pos: torch.sym_float}
)
"""The same function under the name that the reader accepts"""


def in_file(ops: Iterable[Op], symbols: Symbols) -> Iterator[Op]:
    """The ops of a graph with functions that a file can have.

    Raises:
        Refusal: a function of Python's is none that it can have.
    """
    for op in ops:
        named = isinstance(op.result, sympy.Symbol) and bool(symbols.floats.known)
        if not named or hasattr(op.target, "overloadpacket") or op.target in KNOWN:
            yield op
        elif op.target in SYMBOLIC:
            yield op.but(target=SYMBOLIC[op.target])
        else:
            raise Refusal(
                f"a file of torch.export has no {target_name(op.target)} of a number that data"
                " decides",
                kind="unsupported",
                at=op.origin.frame,
                do="compute it of the tensor, before its number is read: torch.exp(t).item()",
            )


# ---- numbers="tensors" ---------------------------------------------------------------------------

READ: Final = aten._local_scalar_dense.default
DOUBLE: Final[Mapping[str, Any]] = MappingProxyType(
    {"dtype": torch.float64, "device": torch.device("cpu")}
)
TAKEN: Final = Choice("numbers", "tensors", "a tensor of one element in the place of a number")
OF_NUMBERS: Final[Mapping[Any, Any]] = MappingProxyType(
    {
        operator.add: aten.add.Tensor,
        operator.sub: aten.sub.Tensor,
        operator.mul: aten.mul.Tensor,
        operator.truediv: aten.div.Tensor,
        operator.pow: aten.pow.Tensor_Tensor,
        operator.neg: aten.neg.default,
        operator.abs: aten.abs.default,
        torch.sym_float: aten.clone.default,
    }
)
"""By a function of Python's, the operator that gives its bits for float64 on a CPU.

For `math.sqrt` there is none: torch's is a vector kernel of MKL's, off by the last bit for 1 in 120
numbers; `pow.Tensor_Scalar` takes a root by it. `pow.Tensor_Tensor` is C's `pow`, as Python's is.
"""
LEAST: Final[Mapping[Any, Any]] = MappingProxyType(
    {torch.sym_min: aten.lt.Tensor, torch.sym_max: aten.gt.Tensor}
)
"""Of two numbers Python takes the second where this holds of the second and the first"""
OF_ONE: Final[Mapping[Any, Any]] = MappingProxyType(
    {
        getattr(getattr(aten, name), overload): getattr(aten, name).Tensor
        for name in ("add", "sub", "mul", "div")
        for overload in ("Scalar", "Tensor")
    }
)
"""What takes a number after a tensor, by the operator that takes a tensor there"""
FACTORS: Final = (aten.addcdiv.default, aten.addcmul.default)
OF_LISTS: Final[Mapping[Any, Any]] = MappingProxyType(
    {
        getattr(getattr(aten, f"_foreach_{one.overloadpacket.__name__}"), overload): one
        for one in (*OF_ONE.values(), *FACTORS, aten.lerp.Scalar)
        for overload in ("Scalar", "ScalarList")
    }
)
"""By an operator of lists, what a CPU calls for the tensors at each place with their number"""
ROUNDED: Final = (torch.float32, torch.float64)
"""The dtypes whose kernels first round a number to the dtype, as a copy does"""


def as_tensors(graph: Graph, semantics: TargetSemantics) -> Graph:
    """The graph with tensors of one element where it computes numbers of data, of the same bits.

    Where Python raises, at a division by zero or a power that is too large, the graph asserts.

    Raises:
        Refusal: no operator has the bits of what is computed, or of what takes a number; or the
            program returns such a number.
    """
    walk = _Tensors(semantics)
    ops = [new for op in graph.ops for new in walk.one(op)]
    if not walk.known:
        return graph
    returned = [
        each for each in leaves([output.value for output in graph.outputs]) if walk.holds(each)
    ]
    for op in graph.ops:
        if walk.holds(op.result) and op.result in returned:
            walk.refuse(op, "a number that data decides is returned", "return the tensor")
    return replace(graph, ops=live(ops, values_of(graph.outputs), semantics))


class _Tensors:
    """One pass over a graph."""

    def __init__(self, semantics: TargetSemantics) -> None:
        self.recorder = EntryRecorder(Entries({}, semantics))
        self.floats = semantics.symbols.floats.known
        self.known: dict[Any, Value] = {}
        """for each number of data, a tensor in float64 that has it"""

    def one(self, op: Op) -> Iterator[Op]:
        """What stands for an op: itself, if it neither makes nor takes a number of data."""
        inside = ((each.args, each.kwargs) for each in every_op([op]))
        if op.target is not READ and not any(map(self._among, inside)):
            yield op
            return
        with self.recorder.scope.inner() as ops:
            news = self._instead(op)
        env: dict[Value, Any] = dict(zip(news, op.outs, strict=bool(op.outs)))
        for new in copy_ops(ops, env, op):
            new.choice, new.piece_of = TAKEN, op
            yield new
        if not op.outs:
            self.known[op.result] = env[news[0]]

    def holds(self, number: Any) -> bool:
        """Whether this is a number of data itself."""
        return isinstance(number, sympy.Symbol) and number in self.known

    def refuse(self, op: Op, what: str, way: str) -> NoReturn:
        """Refuse what has no form of tensors.

        Raises:
            Refusal: always.
        """
        do = (way, 'leave numbers="tensors" out: then Python computes them')
        raise locate(Refusal(f'numbers="tensors": {what}', kind="unsupported", do=do), op)

    def _among(self, tree: Tree) -> bool:
        expressions = (each for each in leaves(tree) if isinstance(each, sympy.Basic))
        return any(s in self.known for each in expressions for s in free_symbols(each))

    def _call(self, func: Any, *args: Any, **kwargs: Any) -> Value:
        return self.recorder.call(func, args, kwargs).outs[0]

    def _instead(self, op: Op) -> Sequence[Value]:
        """Record what stands for an op that makes a number, or takes some; gives its results."""
        if op.target is READ:
            alone = self._call(aten.view.default, op.args[0], [])
            return [self._call(aten._to_copy.default, alone, **DOUBLE)]
        if isinstance(op.result, sympy.Symbol):
            return [self._number_of(op)]
        if op.target not in OF_LISTS:
            rest = [each for each in _named(op).values() if not isinstance(each, Value)]
            return [self._taking(op, op.target, values_in(op.args), rest, op.outs)]
        *lists, numbers = _named(op).values()
        each_one = numbers if isinstance(numbers, list) else [numbers] * len(op.outs)
        calls = zip(zip(*lists, strict=True), each_one, op.outs, strict=True)
        one = OF_LISTS[op.target]
        return [self._taking(op, one, tensors, [number], [out]) for tensors, number, out in calls]

    # ---- what makes a number ------------------------------------------------------------------

    def _number_of(self, op: Op) -> Value:
        of_ints = op.target is not torch.sym_float and not any(map(self._is_float, op.args))
        if of_ints or not self._is_float(op.result):  # exact in Python, and not beyond 2 ** 53 here
            self.refuse(op, "Python computes with ints of data alone", "make them floats: float(n)")
        if op.target in LEAST:
            one, two = map(self._tensor, op.args)
            return self._call(aten.where.self, self._call(LEAST[op.target], two, one), two, one)
        if op.target not in OF_NUMBERS:
            what = f"no operator has the bits of {target_name(op.target)} of a number"
            self.refuse(op, what, "compute it of the tensor, before its number is read")
        args = [self._tensor(each) for each in op.args]
        if op.target is operator.truediv:
            self._assert(self._call(aten.ne.Scalar, args[1], 0), "float division by zero")
        result = self._call(OF_NUMBERS[op.target], *args)
        if op.target is operator.pow and not _is_root(op.args[1]):
            size = self._call(aten.abs.default, result)
            self._assert(self._call(aten.ne.Scalar, size, math.inf), "a power is too large")
        return result

    def _tensor(self, number: Any) -> Value:
        """A number as a tensor: of data, of an input, or a constant."""
        if self.holds(number):
            return self.known[number]
        exact = number if isinstance(number, sympy.Basic) else float(number)
        return self._call(aten.scalar_tensor.default, exact, **DOUBLE)

    def _is_float(self, number: Any) -> bool:
        return isinstance(number, float) or (
            isinstance(number, sympy.Symbol) and number in self.floats
        )

    def _assert(self, condition: Value, text: str) -> None:
        self.recorder.call(aten._assert_async.msg, (condition, text), {})

    # ---- what takes a number ------------------------------------------------------------------

    def _taking(
        self, op: Op, one: Any, tensors: Sequence[Value], rest: Sequence[Any], outs: Sequence[Value]
    ) -> Value:
        """What an operator gives of tensors and one number; a constructor has options after it."""
        like = outs[0].type if len(outs) == 1 else None
        whole = isinstance(rest[0], int) and float(rest[0]) == rest[0]
        taken = whole or self._is_float(rest[0])
        one_number = taken and (len(rest) == 1 or one is aten.scalar_tensor.default)
        if like is not None and one_number and _rounds(like, tensors):
            number = self._call(aten._to_copy.default, self._tensor(rest[0]), dtype=like.dtype)
            found = self._form(one, tensors, number)
            if found is not None and found.type.same_layout(like):
                return found
        what = f"{op.target} takes a number that data decides, and no tensor for the same bits"
        return self.refuse(op, what, "compute with a tensor in the place of the number")

    def _form(self, one: Any, tensors: Sequence[Value], number: Value) -> Value | None:
        """A sum with `alpha=` is rounded once, as `addcmul` is: not a product, and then a sum."""
        match tensors:
            case [] if one is aten.scalar_tensor.default:
                return number
            case [left] if one in OF_ONE:
                return self._call(OF_ONE[one], left, number)
            case [left, right] if one in {aten.add.Tensor, aten.sub.Tensor}:
                minus = one is aten.sub.Tensor
                factor = self._call(aten.neg.default, number) if minus else number
                return self._call(aten.addcmul.default, left, right, factor)
            case [left, right] if one is aten.lerp.Scalar:
                return self._call(aten.lerp.Tensor, left, right, number)
            case [left, right, third] if one in FACTORS:
                return self._call(one, left, self._call(aten.mul.Tensor, right, number), third)
        return None


def _named(op: Op) -> dict[str, Any]:
    """The arguments of an operator, without those that are as they are by default."""
    named = schema_of(op.target).bind(op.args, op.kwargs)
    return {name: each for name, each in named.items() if (name, each) != ("alpha", 1)}


def _rounds(like: TensorType, tensors: Sequence[Value]) -> bool:
    places = {(each.dtype, each.device.type) for each in (like, *(t.type for t in tensors))}
    return places == {(like.dtype, "cpu")} and like.dtype in ROUNDED


def _is_root(exponent: Any) -> bool:
    """Whether a power by it is no larger than 1 or the number itself."""
    return isinstance(exponent, (int, float)) and 0 <= exponent <= 1
