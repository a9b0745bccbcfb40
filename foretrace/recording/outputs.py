"""What a run gives: values, and where in memory that it was given they lie."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from foretrace.errors import Refusal
from foretrace.holding.wrapped import known_as
from foretrace.ir.program import Output, Role
from foretrace.ir.requirements import FIRST_CALL
from foretrace.mutation.alias import Alias, alias_of
from foretrace.mutation.made_leaves import returned_value, value_of
from foretrace.ops.outcome import Share
from foretrace.recording.new_contents import line_of, taken
from foretrace.tensors.abstract import Abstract
from foretrace.trace.recorder import Recorder


class Outputs:
    """Those of one run.

    Args:
        recorder: what recorded it.
        given: what the program computed with in the place of each input; lifting adds some.
        lift: makes an input of a real tensor.
        written: the inputs that it wrote to.
        before: by what stood for it, each input that has other memory by now.
    """

    def __init__(
        self,
        recorder: Recorder,
        given: Callable[[], list[Any]],
        lift: Callable[[torch.Tensor], Abstract],
        written: Collection[int],
        before: Mapping[Alias, int],
    ) -> None:
        self.recorder, self.given = recorder, given
        self.lift, self.written, self.before = lift, written, before

    def of(self, role: Role, leaf: Any) -> Output:
        """The output that a leaf of a result is.

        Raises:
            Refusal: it is a view of an input that is written to, which no call can give.
        """
        if isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return Output(self.recorder.types.symbols.scalar(leaf), role)
        if not isinstance(leaf, torch.Tensor):
            return Output(leaf, role)
        return self._tensor(role, known_as(leaf, self.recorder))

    def _tensor(self, role: Role, placeholder: Abstract) -> Output:
        recorder, placeholders = self.recorder, self.given()
        if placeholder.ft_gradient is None and getattr(placeholder, "ft_grad", None) is not None:
            raise self._of_gradient(role, placeholder)
        value = returned_value(placeholder, recorder)
        same_as = next((i for i, each in enumerate(placeholders) if each is placeholder), None)
        owner = alias_of(placeholder).root
        moved = owner.moved is not None
        view_of = next((
            i for i in self.written
            if placeholders[i] is owner.tensor() or self.before.get(owner) == i
            or (moved and alias_of(placeholders[i]).root is owner)
        ), None)  # fmt: skip
        if same_as is not None or view_of is None:
            return Output(value, role, same_as)
        alias, of = alias_of(placeholder), recorder.types.of
        seen, base = of(placeholder), of(placeholders[view_of])
        retyped = (seen.dtype, seen.lazy) != (base.dtype, base.lazy)
        followed = value.type.requires_grad and not placeholder.ft_leaf
        if retyped or (followed and alias.share is Share.MEMORY):
            held = recorder.overwritten.values()
            raise Refusal(
                "the program returns a view of an input it writes to, of another type or history",
                kind="aliased outputs",
                at=next(h.origin.frame for h in held if h.alias is owner),
                do="return a clone of the view, or take the view outside of the captured program",
            )
        apart = followed and alias.apart
        through, step = None, None
        if followed and not apart:
            through, step = taken(alias, value, view_of, base, recorder)
        return Output(value, role, None, view_of, seen, apart, through, step)

    def _of_gradient(self, role: Role, leaf: Abstract) -> Refusal:
        """The refusal of a leaf that has a gradient; as state, later calls find both."""
        recorder = self.recorder
        with torch.enable_grad():
            made = recorder.histories.place(value_of(leaf, recorder))
        later = (FIRST_CALL,) if role.kind == "state" else ()
        return Refusal(
            f"the {role} is a tensor that the program has made, and has a gradient, which a"
            " graph gives apart", kind="side effect", at=line_of(recorder, made),
            do=("give both: tensor.detach(), tensor.grad", *later),
        )  # fmt: skip
