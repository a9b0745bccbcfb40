"""One call of an operator, as a handler receives it."""

from dataclasses import dataclass, field
from typing import Any

from foretrace import torch_api
from foretrace.ir.program.op import Op
from foretrace.ir.values.value import Tree, Value, map_values, values_in
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.schemas.dispatch_result import Outcome, Schema
from foretrace.operators.schemas.schema import schema_of
from foretrace.tracer.functionalization.builder import RecorderBase

COUNTS = "ADInplaceOrView"
"""The dispatch key whose kernels increment version counters"""


@dataclass(slots=True, eq=False)
class Call:
    """A call in values, the tensors that have these, and what records it."""

    recorder: RecorderBase
    func: Any
    args: Tree
    kwargs: dict[str, Tree]
    tensors: list[Abstract]
    """those among the arguments, each occurrence, in order"""
    values: list[Value]
    """what these stand for"""
    outcome: Outcome | None = None
    """its outcome, where that is shared by all calls of one key"""
    unseen: bool = False
    """whether no version counter counts the write"""
    schema: Schema = field(init=False)
    """what the operator's schema says"""
    written: list[Value] = field(init=False)
    """the operands that it writes to"""
    targets: list[Abstract] = field(init=False)
    """the tensors that it writes to"""

    def __post_init__(self) -> None:
        self.schema = schema_of(self.func)
        self.written = self.schema.written_now(self.args, self.kwargs)
        self.targets = []
        if self.written:
            by_value = self.by_value
            self.targets = [by_value[value] for value in self.written]

    def of(self, args: Tree, kwargs: dict[str, Tree]) -> "Call":
        """The same call with other values."""
        known = values_in((args, kwargs))
        return Call(self.recorder, self.func, args, kwargs, self.tensors, known)

    @property
    def types(self) -> tuple[Tree, dict[str, Tree]]:
        """The arguments, with the types of values."""
        args, kwargs = map_values((self.args, self.kwargs), lambda value: value.type)
        return args, kwargs

    @property
    def by_value(self) -> dict[Value, Abstract]:
        """The tensors, by what they stand for."""
        return dict(zip(self.values, self.tensors, strict=True))

    @property
    def foreign(self) -> bool:
        """Whether another library's kernel writes."""
        form = self.schema.functional
        return form is not None and form.wrapped is not None

    @property
    def counts_writes(self) -> bool:
        """Whether version counters count what the call writes.

        They do in in-place and `out=` forms and in those of lists, but not in fused optimizers nor
        for batch norm's statistics. The kernels of other libraries may increment them.
        Source: gen_inplace_or_view_type.py and gen_variable_type.py in tools/autograd of torch.
        """
        schema = self.schema
        if self.foreign:
            return schema.returns.written or torch_api.kernel_for(self.func, COUNTS)
        lists = self.func.name().startswith("aten::_foreach_")
        return schema.returns.written or bool(schema.outs) or lists

    @property
    def functional(self) -> tuple[Any, Tree, dict[str, Tree]]:
        """The call of the operator's functional form."""
        form = self.schema.functional
        if form is None:
            raise AssertionError(self.func)
        return form.call, *form.arguments(self.args, self.kwargs)


def form_of(call: Call) -> Op:
    """Record the call of the operator's functional form.

    A leaf has the outcome that it had for a call of the same key.
    """
    recorder, known = call.recorder, call.outcome
    form, args, kwargs = call.functional
    if known is not None and known.form is not None:
        return recorder.emit(form, args, kwargs, known.form, values_in((args, kwargs)))
    op = recorder.call(form, args, kwargs)
    if known is not None and op.leaf and isinstance(op.outcome, Outcome):
        known.form = op.outcome if _decided(call, op, op.outcome) else None
    return op


def _decided(call: Call, op: Op, found: Outcome) -> bool:
    """Whether the outcome of the functional form follows from that of the call.

    Open sizes are inferred at each call; a number that the program needs is in no other key.
    """
    recorder = call.recorder
    fixed = recorder.types.symbols.floats.any_fixed(op.args)
    sized = any(value.type.symbols for value in call.values)
    lasts = found.lasting and recorder.semantics.ambient(op.target) is None
    return lasts and not (fixed or sized)
