"""Functionalize operators with `out=`, those that resize, and those that write to lists."""

from functools import partial
from typing import Any

import sympy
import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import Choice
from foretrace.ir.values.nested import leaves, map_tree
from foretrace.ir.values.tensor_type import Size, TensorType
from foretrace.ir.values.value import Tree, Value, substitute, values_in
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract, become_like
from foretrace.operators.schemas.dispatch_result import Schema
from foretrace.operators.schemas.schema import schema_of
from foretrace.tracer.functionalization.alias import alias_of
from foretrace.tracer.functionalization.builder import RecorderBase
from foretrace.tracer.functionalization.current_value import current
from foretrace.tracer.functionalization.in_place_checks import note_overwritten
from foretrace.tracer.functionalization.op_call import Call
from foretrace.tracer.functionalization.self_overlap import meet, overlapping, place
from foretrace.tracer.functionalization.written_layout import lay_out, same_sizes

aten = torch.ops.aten

ITSELF = Choice(
    "out=", "whole", "its functional form may round otherwise, or is of another layout or dtype"
)
LEAVE_OUT = "give a tensor of that shape, or leave `out` away and use the result"
RESIZES = frozenset({aten.resize_.default, aten.resize_as_.default})


def contents(call: Call) -> list[Value | None]:
    """The new content of each operand that the op writes to, those of `out=` first.

    The functional form makes it where it gives the very type that `out` has. Else the op itself
    does, on new memory like that of `out`: a kernel may round otherwise in another layout, and
    computes in the dtype of `out`. An `out` of other sizes gets memory of the result's, as in
    eager.

    Raises:
        Refusal: another tensor sees the memory of an `out` of other sizes, or the op reads it.
        Exception: what eager raises for an `out` of a wrong dtype or device.
    """
    recorder, tensors, after = call.recorder, call.by_value, _types_after(call)
    with recorder.scope.inner(recorder.origin().frame) as ops:
        news = _functional_form(call)
    now: dict[Value, Value] = {}
    for old, new in zip(call.written, news, strict=True):
        now[old] = old
        if new is not None and not _fits(recorder, call.schema, old.type, new.type):
            if call.values.count(old) > 1:
                raise overlapping(f"{call.func} reads a tensor that it resizes and writes to")
            _check_known(recorder, old.type, new, after.get(old))
            now[old] = _renew(recorder, tensors[old], old, new.type)
    call = _substituted(call, now)
    if not _is_functional_form(call, list(now.values()), news):
        return list(_in_place(call))
    for op in ops:
        recorder.append(op)
    return news


def _substituted(call: Call, env: dict[Value, Value]) -> Call:
    return call.of(*substitute((call.args, call.kwargs), env))


def _types_after(call: Call) -> dict[Value, TensorType]:
    """The operands' types once the op has run; nothing where there is no kernel to ask.

    Sizes are those of the run: many of these kernels know numbers only.
    """
    recorder = call.recorder
    if recorder.types.symbols.unknown([value.type.shape for value in call.values]):
        return {}
    try:
        args, kwargs = map_tree((call.args, call.kwargs), partial(_in_numbers, recorder))
        types = recorder.semantics.written(call.func, args, kwargs)
    except Refusal:
        return {}
    return dict(zip(call.values, types, strict=True))  # an `out` stands last


def _in_numbers(recorder: RecorderBase, leaf: Any) -> Any:
    """An argument with the sizes that it has in this run; a value's type."""
    hint = recorder.types.symbols.hint
    if not isinstance(leaf, Value):
        return hint(leaf) if isinstance(leaf, sympy.Expr) else leaf
    shape, stride = (tuple(map(hint, sizes)) for sizes in (leaf.type.shape, leaf.type.stride))
    return leaf.type.but(shape=shape, stride=stride, offset=hint(leaf.type.offset))


def _fits(recorder: RecorderBase, schema: Schema, old: TensorType, new: TensorType) -> bool:
    """Whether eager leaves an `out` its sizes."""
    if schema.keeps_shape and same_sizes(recorder, (old.numel,), (new.numel,)):
        return True
    if len(old.shape) != len(new.shape):
        return False
    return same_sizes(recorder, old.shape, new.shape) or _equal(recorder, old.shape, new.shape)


def _equal(recorder: RecorderBase, one: tuple[Size, ...], other: tuple[Size, ...]) -> bool:
    """Whether two shapes are equal in this run; a guard for open sizes."""
    decide = recorder.types.symbols.decide
    return all(decide(sympy.Eq(a, b)) for a, b in zip(one, other, strict=True))


def _check_known(
    recorder: RecorderBase, old: TensorType, result: Value, after: TensorType | None
) -> None:
    """Refuse to resize an `out` where torch's kernels for types do not say what becomes of it.

    They and the functional form may give other strides. A result of no elements may be one that the
    op leaves alone (batch norm in eval mode).
    """
    new, run = result.type, _in_numbers(recorder, result)
    straight = new.dense and new.memory_order() == list(range(len(new.shape)))
    known = straight or not new.symbols
    if after is not None and after.shape == run.shape:
        known = _same_strides(recorder, after, run)
    if (0 in new.shape and 0 not in old.shape) or not known:
        raise Refusal(
            f"what becomes of an `out` of {list(old.shape)} for a result of {list(new.shape)} is"
            " not known",
            kind="no functional form",
            do="give a tensor of the result's shape, or leave `out` away",
        )


def _functional_form(call: Call) -> list[Value | None]:
    recorder, (form, *arguments) = call.recorder, call.functional
    if schema_of(form).writes:  # batch norm's statistics
        results = recorder.again(form, *recorder.concrete(arguments, call.by_value))
        return [current(alias_of(t), recorder) for t in leaves(results)]
    op = recorder.call(form, *arguments)
    return [
        recorder.call(aten.clone.default, (new,)).outs[0] if new in op.operands else new
        for new in leaves(op.result)
    ]


def _is_functional_form(call: Call, olds: list[Value], news: list[Value | None]) -> bool:
    """Whether the op does what its functional form does; one that returns nothing copies that."""
    recorder, func, operands = call.recorder, call.func, call.values
    if not call.schema.returns.something:
        return True
    read = torch.Tag.pointwise not in func.tags and any(operands.count(old) > 1 for old in olds)
    pairs = [(old.type, new.type) for old, new in zip(olds, news, strict=True) if new is not None]
    if not read and all(_same_layout(recorder, old, new) for old, new in pairs):
        return True
    if len(olds) > len(_outs(call)) or schema_of(call.functional[0]).writes:
        raise Refusal(
            f"{func} is given an `out` of another layout or dtype than its result, and writes more",
            kind="no functional form",
            do="leave `out` away, and copy the result into it",
        )
    return False


def _same_layout(recorder: RecorderBase, old: TensorType, new: TensorType) -> bool:
    """Whether a new tensor has the dtype, sizes and strides of an old one."""
    if old.dtype != new.dtype or new.lazy or not same_sizes(recorder, old.shape, new.shape):
        return False
    return _same_strides(recorder, old, new)


def _same_strides(recorder: RecorderBase, one: TensorType, other: TensorType) -> bool:
    """Whether strides are equal, but for dimensions of size 1."""
    far = [
        tuple(n for n, size in zip(t.stride, t.shape, strict=True) if size != 1)
        for t in (one, other)
    ]
    return 0 in one.shape or same_sizes(recorder, *far)


def _in_place(call: Call) -> tuple[Value, ...]:
    """The op on copies of its `out`s: a kernel may read one, or leave parts of it as they are."""
    recorder = call.recorder
    fresh = {old: lay_out(recorder, old.type, old) for old in _outs(call)}
    outs = tuple(Value(value.type) for value in fresh.values())
    over, origin = _substituted(call, fresh), recorder.origin()
    result = outs if call.schema.returns.several else outs[0]
    recorder.append(
        Op(call.func, over.args, over.kwargs, result, outs, origin=origin, choice=ITSELF)
    )
    return outs


def _outs(call: Call) -> list[Value]:
    return values_in([call.kwargs.get(name) for name in call.schema.outs])


def resize(call: Call) -> Abstract:
    """`resize_` and `resize_as_` where nothing in memory is kept, or nothing is to be done.

    Raises:
        Refusal: what memory holds would have to be seen otherwise.
        RuntimeError: autograd follows the tensor; eager raises the same.
    """
    recorder, func, args, tensor = call.recorder, call.func, call.args, call.tensors[0]
    old = args[0]
    if old.type.requires_grad:
        raise RuntimeError("cannot resize variables that require grad")
    like = args[1].type.shape if isinstance(args[1], Value) else tuple(args[1])
    if call.kwargs.get("memory_format") is None and same_sizes(recorder, old.type.shape, like):
        return tensor
    type = recorder.semantics.written(func, *call.types)[0]
    if same_sizes(recorder, (*old.type.shape, *old.type.stride), (*type.shape, *type.stride)):
        return tensor
    if 0 not in (*type.shape, *old.type.shape):
        raise Refusal(
            f"{func} makes {list(type.shape)} of a tensor of {list(old.type.shape)}",
            kind="no functional form",
            do="make a new tensor, or use reshape() or a slice",
        )
    _renew(recorder, tensor, old, type)
    return tensor


def _renew(recorder: RecorderBase, tensor: Abstract, old: Value, type: TensorType) -> Value:
    """Give a tensor new memory of this type, without content."""
    alias = alias_of(tensor)
    seen = any(each.is_view or each.tensor() is not None for each in alias.children)
    if tensor.ft_leaf or alias.parent is not None or seen:
        raise Refusal(
            f"a tensor of {list(old.type.shape)} is resized in place to {list(type.shape)}, and it"
            " is an input, or others see its memory",
            kind="side effect",
            do=LEAVE_OUT,
        )
    if old.type.requires_grad:
        raise Refusal(
            f"a tensor of {list(old.type.shape)} with a history is resized in place to"
            f" {list(type.shape)}, which leaves it the history of another shape",
            kind="unsupported",
            do=LEAVE_OUT,
        )
    sizes, strides = list(type.shape), list(type.stride)
    new: Value = recorder.call(aten.new_empty_strided.default, (old, sizes, strides)).outs[0]
    become_like(tensor, recorder.abstract(new))
    note_overwritten(alias, recorder)
    alias.become(new)
    alias.initial = new
    return new


def write_one_by_one(call: Call, *, followed: bool) -> bool:
    """Record the writes to a list one by one, as eager does them; False if they are one call.

    They are one call where no memory is shared and autograd follows nothing: a functional form has
    a derivative for all of its tensors or for none. Eager's own saves results when all is written,
    so parts of one memory that are followed are written at once, too, if that has a derivative.

    Raises:
        Refusal: what is written a second time, or read elsewhere, is followed.
    """
    recorder, func, schema = call.recorder, call.func, call.schema
    if not schema.writes_lists or schema.outs:
        return False
    if followed and not _derivable(func, call.args, call.kwargs):
        raise Refusal(
            f"no derivative: {func} has none, and is followed by autograd",
            kind="no derivative",
            do=("call it under torch.no_grad()", "or the operator for each of the tensors"),
        )
    kernel, env = recorder.semantics.list_kernel(func), call.by_value
    shared, met, by_another = _shared(call)
    if (met and followed) or (by_another and kernel is None):
        raise overlapping(f"{func} writes to a list whose tensors overlap")
    at_once = schema.functional is not None and shared and _derivable(*call.functional)
    if kernel is None or (not met and (at_once or not followed)):
        return False
    with recorder.listening():
        kernel(*recorder.concrete(call.args, env), **recorder.concrete(call.kwargs, env))
    return True


def _derivable(func: Any, args: Tree, kwargs: dict[str, Tree]) -> bool:
    """Whether torch has a derivative: some have none that have one for each tensor.

    It is asked of torch, with single numbers.
    """

    def small(leaf: Any) -> Any:
        if isinstance(leaf, Value):
            return torch.ones((), dtype=leaf.type.dtype, requires_grad=leaf.type.requires_grad) * 1
        return 1 if isinstance(leaf, sympy.Basic) else leaf

    with torch_api.CleanRoom(), torch_api.with_autograd():
        args, kwargs = map_tree((args, kwargs), small)
        results = func(*args, **kwargs) or args[0]
    return not any(torch_api.node_name(t).endswith("NotImplemented") for t in results)


def _shared(call: Call) -> tuple[bool, bool, bool]:
    """Whether others see memory that is written, whether any see the very same elements.

    The same tensor does, also where it has none: eager counts its writes. The third: whether one
    does in another row, where a kernel that takes all rows at once may read what it has written. In
    its own row it has read the element before: `_foreach_mul_([a, b], [a, b])`.
    """
    recorder, aliases = call.recorder, list(map(alias_of, call.tensors))
    places = [place(alias, current(alias, recorder)) for alias in aliases]
    written = {id(alias_of(target)) for target in call.targets}
    pairs = [
        (index, at)
        for index, alias in enumerate(aliases)
        for at, other in enumerate(aliases)
        if index != at and alias.root is other.root and id(alias) in written
    ]
    met = [
        (one, two)
        for one, two in pairs
        if aliases[one] is aliases[two] or meet(recorder, places[one], places[two])
    ]
    rows = _rows(call)
    by_another = (rows[one] != rows[two] or places[one] != places[two] for one, two in met)
    return bool(pairs), bool(met), any(by_another)


def _rows(call: Call) -> list[tuple[int, int]]:
    """Each tensor's place in its list, and the number of the list: 0 of those that are read."""
    rows = list[tuple[int, int]]()
    for number, each in enumerate((*call.args, *call.kwargs.values())):
        if isinstance(each, (list, tuple)):
            of = number if len(rows) < len(call.targets) else 0  # written lists are the first
            rows += [(row, of) for row, _ in enumerate(values_in(each))]
        elif isinstance(each, Value):
            rows.append((-1, number))
    return rows
