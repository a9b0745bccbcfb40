"""Ops whose results have sizes or numbers that depend on data: each is a symbol.

The example's values give each symbol its number in the run; it stays open in the graph. Questions
about it are answered from the example, and asserted in the graph.
"""

from collections.abc import Callable
from copy import copy
from typing import Any

import sympy
import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op, SharedBody
from foretrace.ir.program.origin import Choice, Origin
from foretrace.ir.program.rewriter import RecordedBody
from foretrace.ir.symbols.sym_int import as_int
from foretrace.ir.values.nested import map_tree
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree, Value
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.inference.cpu_kernels import depends_on_data, types_in
from foretrace.operators.schemas.dispatch_result import Outcome
from foretrace.operators.schemas.schema import schema_of
from foretrace.tracer.concrete.unknown_values import GUARD, READS_ONE
from foretrace.tracer.functionalization.builder import RecorderBase
from foretrace.tracer.functionalization.functionalize import functionalize
from foretrace.tracer.functionalization.op_call import Call

NUMBER = Choice("number", "whole", "data decides it: the graph computes it when it runs")
ITEM = torch.ops.aten.item.default
READ = torch.ops.aten._local_scalar_dense.default
"""The body of `item`: compilers know this one"""


def of_open_size(call: Call) -> Any:
    """Record the call, and answer it with tensors whose sizes are symbols.

    Raises:
        Refusal: the example's values are not known.
    """
    recorder, func = call.recorder, call.func
    real = recorder.answers.example(recorder, func, call.args, call.kwargs)
    counts = [recorder.counts.setdefault(value, {}) for value in call.values]
    result = recorder.semantics.inference.from_data(func, *call.types, real, counts)
    flags = iter(_followed(call, result))

    def typed(leaf: Any) -> Any:
        if not isinstance(leaf, TensorType):
            return leaf
        return recorder.types.intern(leaf.with_grad(next(flags)))

    views = call.schema.view_positions(call.args, call.kwargs, len(types_in(result)))
    outcome = Outcome(map_tree(result, typed), views=views, lasting=False)
    return recorder.record(func, call.args, call.kwargs, outcome, call.tensors)


def ask_where(
    names: tuple[str, ...],
    recorder: RecorderBase,
    func: Any,
    args: Tree,
    kwargs: dict[str, Tree],
) -> None:
    """Ask whether a view counts an index from the start or the end, and whether it is in range.

    `names` are the arguments of the view that are places in its dimension.

    The offset and the size then follow. Else no op would bind a symbol of the offset, and a slice
    that is taken twice would have two sizes. The answers are asserted.
    """
    named, symbols = schema_of(func).bind(args, kwargs), recorder.types.symbols
    for place in filter(None, map(named.get, names)):
        if isinstance(place, sympy.Basic) and not symbols.data.isdisjoint(place.free_symbols):
            size = args[0].type.shape[named.get("dim", 0)]
            if symbols.decide(sympy.Ge(place, 0)):
                symbols.decide(sympy.Le(place, size))
            else:
                symbols.decide(sympy.Ge(place, -size))


def read_number(call: Call) -> Any:
    """Answer a call that reads a number: a symbol where inputs decide it, else what constants say.

    Raises:
        Refusal: the example's values are not known, or it is complex.
    """
    recorder, func = call.recorder, call.func
    number, decided = recorder.answers.number(recorder, func, call.args, call.kwargs)
    if not decided:
        return recorder.answers.answer(recorder, func, call.args, call.kwargs)
    return _open(call, number)


def open_number(call: Call) -> torch.SymInt | torch.SymFloat:
    """Record a call that gives a number, and answer it with a symbol for it.

    Raises:
        Refusal: the example's values are not known, or it is complex.
    """
    recorder, func = call.recorder, call.func
    return _open(call, recorder.answers.example(recorder, func, call.args, call.kwargs))


def _open(call: Call, number: Any) -> torch.SymInt | torch.SymFloat:
    recorder, func = call.recorder, call.func
    if type(number) not in (int, float) or any(value.type.sparse for value in call.values):
        raise depends_on_data(func)
    symbol = _number_of(call, number)
    body = _reading(call, symbol) if func is ITEM else None
    outcome = Outcome(symbol, body, None if body else NUMBER, lasting=False)
    recorder.record(func, call.args, call.kwargs, outcome, call.tensors)
    opened: Any = as_int(recorder.types.symbols.symbolic(symbol))
    return opened


def answer(call: Call) -> Any:
    """Answer a call that returns a number: that of constants, or a symbol for the example's."""
    try:
        return call.recorder.answers.answer(call.recorder, call.func, call.args, call.kwargs)
    except Refusal as refusal:
        if refusal.kind != "data-dependent":
            raise
        try:
            return open_number(call)
        except Refusal:
            raise refusal from None


class DataSizedOp:
    """A call whose result's size depends on data: known where its operands are constants.

    Args:
        refusal: what is raised where nothing is known.
        known: answers the call by constant operands, or returns NotImplemented.
    """

    def __init__(self, refusal: Refusal, known: Callable[[Call], Any] | None = None) -> None:
        self.refusal, self.known = refusal, known

    def __call__(self, call: Call) -> Any:
        found = NotImplemented if self.known is None else self.known(call)
        if found is not NotImplemented:
            return found
        try:
            result = answer(call)
        except Refusal as refusal:
            if refusal.kind != "data-dependent" or not self._open(call):
                # a copy: the traceback of a raised one keeps frames alive
                raise copy(self.refusal) if refusal.kind == "data-dependent" else refusal from None
            return self._of_example(call)
        device = _device_of(call)

        def lifted(item: Any) -> Any:
            return _constant_on(device, item, call) if isinstance(item, torch.Tensor) else item

        return map_tree(result, lifted)

    def _open(self, call: Call) -> bool:
        floats = call.recorder.types.symbols.floats.among((call.args, call.kwargs))
        from_number = bool(floats) and not call.values  # `arange(v)`
        sized = torch_api.sized_by_data(call.func) or bool(call.schema.viewed)
        return sized or from_number

    def _of_example(self, call: Call) -> Any:
        try:
            return of_open_size(call)
        except Refusal as refusal:
            if refusal.kind != "data-dependent":
                raise refusal from None
            new = copy(self.refusal)  # the traceback of a raised one keeps frames alive
            new.ways += (GUARD,) if GUARD in refusal.ways else ()
            raise new from None


def put_at_places(call: Call) -> Any:
    """Record a write at a mask as one at the places where it is true.

    The gradient of what is written is read at a mask, and only the run knows how long that is.
    """
    recorder, (tensor, indices, new, *rest) = call.recorder, call.args
    tensors, places = call.by_value, list[Any]()
    for index in indices:
        if not is_mask(index):
            places.append(None if index is None else tensors[index])
        else:
            check_mask(tensors[tensor], tensors[index], len(places))
            found = recorder.again(torch.ops.aten.nonzero.default, (tensors[index],))
            places += recorder.again(torch.ops.aten.unbind.int, (found, 1))
    return recorder.again(call.func, (tensors[tensor], places, tensors[new], *rest), call.kwargs)


def fill_at_places(call: Call) -> Any:
    """Record a fill with a number that has a gradient as a copy to the places, each of them once.

    The gradient is summed over the places without repetition, and only the run knows how many
    these are. The derivative of the copy sums as that of the fill does.
    """
    again = call.recorder.again
    tensor, dim, index, value = call.args
    filled, number = call.by_value[tensor], call.by_value[value]
    if not _known_numbers(call.recorder, index):
        return _filled(call)  # a joint cut is refused then
    places, _ = again(torch.ops.aten._unique.default, (call.by_value[index], False))
    if not call.written:
        filled = again(torch.ops.aten.clone.default, (filled,))
    if number.dtype != filled.dtype:
        number = again(torch.ops.aten._to_copy.default, (number,), {"dtype": filled.dtype})
    size = list(filled.shape)
    if size:
        size[dim] = places.shape[0]
    source = again(torch.ops.aten.expand.default, (number, size))
    return again(torch.ops.aten.index_copy_.default, (filled, dim, places, source))


def _known_numbers(recorder: RecorderBase, value: Value) -> bool:
    """Whether what a tensor holds is known: of a constant, or of the example."""
    for ask in (recorder.answers.answer, recorder.answers.example):
        try:
            ask(recorder, torch.ops.aten.clone.default, (value,), {})
        except Refusal:
            continue
        return True
    return False


def _filled(call: Call) -> Any:
    """Record a fill as it is."""
    if call.schema.written_now(call.args, call.kwargs):
        return functionalize(call)
    recorder = call.recorder
    type = recorder.semantics.infer(call.func, *call.types).with_grad(True)
    outcome = Outcome(recorder.types.intern(type), lasting=False)
    return recorder.record(call.func, call.args, call.kwargs, outcome, call.tensors)


def is_mask(index: Value | None) -> bool:
    """Whether an index is one for each element, and so as many places as are true."""
    return index is not None and index.type.dtype in (torch.bool, torch.uint8)


def check_mask(tensor: torch.Tensor, mask: torch.Tensor, at: int) -> None:
    """Raise what eager does for a mask of another shape than the dimensions that it is for.

    Source: expandTensors in aten/src/ATen/native/IndexingUtils.h.

    Raises:
        IndexError: its places would be looked up in the other shape, and might be there.
    """
    for place, size in enumerate(mask.shape):
        if at + place >= tensor.dim() or tensor.shape[at + place] != size:
            raise IndexError(
                f"The shape of the mask {list(mask.shape)} at index {place} does not match the"
                f" shape of the indexed tensor {list(tensor.shape)} at index {at + place}"
            )


def index_at_constants(call: Call) -> Any:
    """Record an index with constant masks as one at the places where they are true.

    NotImplemented: the numbers of a mask are not known.
    """
    recorder, places = call.recorder, list[Abstract | None]()
    for index in call.args[1]:
        if index is None or not is_mask(index):
            places.append(None if index is None else recorder.abstract(index))
            continue
        try:
            found = recorder.answers.answer(recorder, torch.ops.aten.nonzero.default, (index,), {})
        except Refusal:
            return NotImplemented
        check_mask(call.tensors[0], recorder.abstract(index), len(places))
        places += [_constant_on(index.type.device, place, call) for place in found.unbind(1)]
    return recorder.again(call.func, (call.tensors[0], places))


def _device_of(call: Call) -> torch.device | None:
    """Where the result of a call is; None: on the CPU."""
    return call.values[0].type.device if call.values else call.kwargs.get("device")


def _constant_on(device: torch.device | None, tensor: torch.Tensor, call: Call) -> Any:
    """A tensor of known numbers, which are computed on the CPU, where the call has it."""
    constant = call.recorder.answers.lift_constant(tensor)
    if device is None or device == constant.device:
        return constant
    moved = {"device": device}
    return call.recorder.again(torch.ops.aten._to_copy.default, (constant,), moved)


def takes_doubles(recorder: RecorderBase, func: Any, args: Tree, kwargs: dict[str, Tree]) -> bool:
    """Whether a float that data decides is where C++ has a number, and nothing that may be open."""
    known = recorder.types.symbols.floats
    if not known.known:
        return False
    arguments = torch_api.schema_of(func).arguments
    doubles = {each.name for each in arguments if "float" in str(each.type)}
    bound = schema_of(func).bind(args, kwargs).items()
    return any(name in doubles and known.among(arg) for name, arg in bound)


def _number_of(call: Call, number: float) -> sympy.Symbol:
    """The symbol of a number: the same for each time that it is read of one value."""
    symbols = call.recorder.types.symbols
    if call.func not in READS_ONE:
        return symbols.number_from_data(number)
    known = call.recorder.counts.setdefault(call.values[0], {})
    if torch_api.ITEM not in known:
        known[torch_api.ITEM] = symbols.symbolic(symbols.number_from_data(number))
    symbol: sympy.Symbol = torch_api.expression(known[torch_api.ITEM])
    return symbol


def _reading(call: Call, symbol: Any) -> SharedBody:
    """The body of `item`."""
    tensor = Value(call.values[0].type)
    origin = Origin(call.recorder.origin().frame, None)
    read = Op(READ, (tensor,), {}, symbol, (), origin=origin, choice=NUMBER)
    return RecordedBody((tensor,), (read,), ())


def _followed(call: Call, result: Tree) -> tuple[bool, ...]:
    """Which of the results autograd follows."""
    if call.recorder.grad_mode() and any(value.type.requires_grad for value in call.values):
        return call.recorder.semantics.followed(call.func, *call.types, result)
    return (False,) * len(types_in(result))
