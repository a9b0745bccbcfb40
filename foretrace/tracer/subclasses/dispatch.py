"""Tensor subclasses in a run: the program has real ones, which wrap abstract tensors.

The recorder has an abstract tensor for each, its stand-in, with a Value whose type lists what is
wrapped. An op on stand-ins is one op of the record. Its body is what `__torch_dispatch__` does:
it unwraps operands (`Unwrap`) and wraps results (`Wrap`).
"""

from collections.abc import Iterator, Sequence
from typing import Any
from weakref import ref

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op
from foretrace.ir.pydata.tensor_classes import STAND_INS
from foretrace.ir.values.nested import map_tree
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value
from foretrace.operators.abstract_tensors.abstract_parameter import AbstractParameter
from foretrace.operators.abstract_tensors.abstract_tensor import FLAG, Abstract, follow
from foretrace.operators.abstract_tensors.subclass_types import (
    Metadata,
    Unwrap,
    Wrap,
    Wrapping,
    flattened,
    wraps,
)
from foretrace.tracer.functionalization.alias import Alias, alias_of
from foretrace.tracer.functionalization.autograd_leaves import value_of
from foretrace.tracer.functionalization.builder import RecorderBase

STANDS = "_foretrace_stands"
"""Attribute of a tensor of the run: its stand-in"""


def stand_in(tensor: torch.Tensor, recorder: RecorderBase) -> Abstract | None:
    """The stand-in of a tensor subclass; None if it wraps no tensor of the run.

    Raises:
        Refusal: the program has changed the tensor, or what it holds, in place.
    """
    if not wraps(type(tensor)):
        stands: Abstract | None = STAND_INS.of(tensor)
        return stands
    known: Abstract | None = vars(tensor).get(STANDS)
    if known is None:
        return _new_stand_in(tensor, recorder)
    check_unchanged(tensor, known)
    return known


def known_as(tensor: torch.Tensor, recorder: RecorderBase) -> Abstract:
    """The abstract tensor, or stand-in, of any tensor: one from outside becomes an input."""
    known = tensor if isinstance(tensor, Abstract) else stand_in(tensor, recorder)
    return recorder.answers.lift(tensor) if known is None else known


def of_the_run(tensor: Any) -> bool:
    """Whether something is a tensor of the run, or holds one that is."""
    if isinstance(tensor, Abstract) or not wraps(type(tensor)):
        return isinstance(tensor, Abstract) or STAND_INS.of(tensor) is not None
    return any(of_the_run(getattr(tensor, name)) for name in flattened(tensor)[0])


def check_unchanged(tensor: Any, known: Abstract) -> None:
    """Refuse a tensor that the program has changed, or what it wraps; None: it is not alive.

    Raises:
        Refusal: it has.
    """
    if tensor is None:
        return
    attributes, values = known.ft_wrapped
    same = {name: item for name, item in vars(tensor).items() if name not in torch_api.CACHED_SIZES}
    if same.keys() != attributes.keys() or any(same[n] is not attributes[n] for n in same):
        raise changed(tensor, "sets an attribute of")
    if any(part.ft_value is not value for part, value in values):
        raise changed(tensor, "writes to what is held by")
    value = known.ft_value
    if value is not None and bool(FLAG(tensor)) != value.type.requires_grad:
        raise changed(tensor, "changes requires_grad of")


def changed(tensor: Any, what: str) -> Refusal:
    """The refusal of a program that does this to a tensor of such a class."""
    name = type(tensor).__name__
    return Refusal(
        f"the program {what} a {name}, a tensor class of its own",
        kind="unsupported tensor",
        do=("make a new one of new tensors", "or do it outside of the captured program"),
    )


def _new_stand_in(tensor: Any, recorder: RecorderBase) -> Abstract | None:
    """The stand-in of a tensor that the program has just built of tensors of the run."""
    names, context = flattened(tensor)
    parts = [getattr(tensor, name) for name in names]
    if not any(map(of_the_run, parts)):
        return None  # it comes from outside
    if FLAG(tensor) or (recorder.inside and any(map(FLAG, parts))):
        raise Refusal(
            f"the program makes a {type(tensor).__name__} that is a leaf of autograd, or holds one",
            kind="unsupported tensor",
            do="make it of detached tensors, or make it outside of the captured program",
        )
    stood = [known_as(each, recorder) for each in parts]
    values = tuple(value_of(each, recorder) for each in stood)
    types = tuple(value.type.with_grad(False) for value in values)
    wrapping = Wrapping(type(tensor), names, types, Metadata(context))
    sizes = recorder.types.symbols.sizes
    type_ = recorder.types.intern(
        TensorType(
            sizes(tensor.shape),
            sizes(tensor.stride()),
            tensor.dtype,
            tensor.device,
            wrapped=wrapping,
        )
    )
    check_sizes(type_)
    new = Value(type_)
    recorder.append(Op(Wrap(type_), values, {}, new, (new,), origin=recorder.origin()))
    recorder.aliasing.in_subclasses.update(_owners(stood))
    known = recorder.abstract(new)
    _join(tensor, known, stood)
    return known


def _owners(parts: list[Abstract]) -> list[Value]:
    """The values of what owns the memory of each."""
    return [alias_of(each).root.last for each in parts]


def check_sizes(type: TensorType) -> None:
    """Refuse open sizes, which no class supports.

    Raises:
        Refusal: there are such.
    """
    if type.symbols or any(each.symbols for each in type.wrapped.inner):
        raise Refusal(
            f"a {type.wrapped} of open sizes",
            kind="unsupported tensor",
            do="capture with fixed sizes: give the others no dynamic_shapes",
        )


def instance(known: Abstract, recorder: RecorderBase) -> Any:
    """The program's one tensor for a stand-in."""
    new = known.ft_instance() if known.ft_instance is not None else None
    return _instance(known, recorder) if new is None else new


def _instance(known: Abstract, recorder: RecorderBase) -> Any:
    value = value_of(known, recorder)
    type, wrapped = value.type, [recorder.abstract(part) for part in unwrap(recorder, value)]
    for name, _ in type.wrapped.followed:
        part = wrapped[type.wrapped.names.index(name)]
        follow(part, True)
        part.ft_leaf = True
    real = tuple(as_program_has(each, recorder) for each in wrapped)
    new = type.wrapped.make(real, type.shape, type.stride)
    if isinstance(known, AbstractParameter):
        torch_api.mark_parameter(new)
    FLAGGED(new, type.requires_grad)
    _join(new, known, wrapped)
    return new


def unwrap(recorder: RecorderBase, value: Value) -> tuple[Value, ...]:
    """Record an op that gives what a tensor subclass wraps."""
    wrapping = value.type.wrapped
    parts = tuple(Value(recorder.types.intern(inner)) for inner in wrapping.inner)
    names = Unwrap(wrapping.names)
    recorder.append(Op(names, (value,), {}, parts, parts, origin=recorder.origin()))
    recorder.aliasing.in_subclasses.update(parts)
    return parts


FLAGGED: Any = torch.Tensor.requires_grad_
"""torch's own, while it is replaced for the program"""


def _join(tensor: Any, known: Abstract, wrapped: list[Abstract]) -> None:
    setattr(tensor, STANDS, known)
    known.ft_instance = ref(tensor)
    known.ft_wrapped = dict(vars(tensor)), [(each, each.ft_value) for each in wrapped]


def now_holds(known: Abstract) -> None:
    """Note the present values of wrapped tensors, after a write."""
    attributes, wrapped = known.ft_wrapped
    known.ft_wrapped = attributes, [(each, each.ft_value) for each, _ in wrapped]


def as_program_has(answer: Any, recorder: RecorderBase) -> Any:
    """An answer, with the program's tensors for stand-ins."""

    def shown(leaf: Any) -> Any:
        if not isinstance(leaf, Abstract) or leaf.ft_value is None:
            return leaf
        if leaf.ft_value.type.wrapped:
            return instance(leaf, recorder)
        known = None if leaf.ft_instance is None else leaf.ft_instance()
        return leaf if known is None else known

    return map_tree(answer, shown)


def memories(tensor: Abstract) -> Iterator[Alias]:
    """What owns the memory of a tensor, or of what it holds."""
    if tensor.ft_value is not None and tensor.ft_value.type.wrapped:
        for each, _ in tensor.ft_wrapped[1] if tensor.ft_instance is not None else ():
            yield from memories(each)
    else:
        yield alias_of(tensor).root


def sharing(results: Sequence[Any], operands: Sequence[Abstract]) -> Iterator[tuple[int, int]]:
    """Positions of results that share memory with an operand, and those of the operands."""
    owners = {owner: i for i, each in enumerate(operands) for owner in memories(each)}
    for position, each in enumerate(results):
        shared = [owners[owner] for owner in memories(each) if owner in owners]
        if shared:
            yield position, shared[0]


class SubclassKernel:
    """What an operator does where an operand wraps others: the class's `__torch_dispatch__`."""

    def __init__(self, func: Any, recorder: RecorderBase, written: Abstract | None = None) -> None:
        self.func, self.recorder, self.written = func, recorder, written

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call `__torch_dispatch__` with the program's tensors; returns stand-ins."""
        recorder = self.recorder
        args, kwargs = map_tree((args, kwargs), lambda leaf: as_program_has(leaf, recorder))
        leaves = torch_api.tree_leaves((args, kwargs))
        kinds = list(dict.fromkeys(type(each) for each in leaves if wraps(type(each))))
        for kind in sorted(kinds, key=lambda each: -len(each.__mro__)):
            dispatch: Any = kind
            with recorder.user_code(), recorder.casts.off():
                result = dispatch.__torch_dispatch__(self.func, tuple(kinds), args, kwargs)
            for each in leaves:
                known = vars(each).get(STANDS) if wraps(type(each)) else None
                if known is not None and known is not self.written:
                    check_unchanged(each, known)
            if result is not NotImplemented:
                return None if self.written is not None else map_tree(result, self._stood)
        raise TypeError(
            f"{self.func}: __torch_dispatch__ of {', '.join(k.__name__ for k in kinds)} does not"
            " take such operands"
        )

    def _stood(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or isinstance(leaf, Abstract):
            return leaf
        return known_as(leaf, self.recorder)


def check_takes(func: Any, kind: str) -> None:
    """Refuse a call, with a tensor of a class of its own, whose body cannot be recorded.

    Raises:
        Refusal: the operator holds programs.
    """
    if isinstance(func, torch_api.HigherOrderOperator):
        raise _no_place(f"{func} with a {kind} among its operands", "call it with plain tensors")


def _no_place(what: str, do: str) -> Refusal:
    return Refusal(
        what, kind="unsupported tensor", do=(do, "or do it outside of the captured program")
    )


def unshared(what: str) -> Refusal:
    """The refusal of a `__torch_dispatch__` that no body shows."""
    return _no_place(
        f"its __torch_dispatch__ {what}", "let it compute with its operands alone, by operators"
    )
