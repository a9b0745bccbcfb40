"""The outputs of a run: values, and their views of inputs."""

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final, TypeAlias

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.call_requirements import FIRST_CALL
from foretrace.ir.program.interface import Output, Relation, Role
from foretrace.ir.program.op import ViewStep
from foretrace.ir.program.tensor_effects import MarkOutput
from foretrace.ir.pydata.containers import Structure, named_leaves
from foretrace.ir.source.call_site import definition, place_of
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value, values_in
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.schemas.dispatch_result import Share
from foretrace.python_state.effects.leaks import check_no_number
from foretrace.session.run.mutations import line_of, maker_of
from foretrace.tracer.functionalization.alias import Alias, alias_of
from foretrace.tracer.functionalization.autograd_leaves import returned_value, value_of
from foretrace.tracer.functionalization.builder import DETACH
from foretrace.tracer.functionalization.self_overlap import place
from foretrace.tracer.recorder.recorder import Recorder
from foretrace.tracer.subclasses.dispatch import known_as

SIMPLE: Final = frozenset({bool, int, float, str, type(None)})
"""Types of what a tensor that a call returns may have as attributes: none is a container"""
Mark: TypeAlias = tuple[bool, tuple[tuple[str, Any], ...]]
"""Whether a tensor is a parameter, and its attributes"""
TAKEN: Final = "something is taken from it"
LATER: Final[dict[type, tuple[str, str]]] = {
    CoroutineType: ("a coroutine", "it is awaited"),
    GeneratorType: ("a generator", TAKEN),
    AsyncGeneratorType: ("an asynchronous generator", TAKEN),
    **{kind: (f"a {kind.__name__}", TAKEN) for kind in (map, filter, zip, enumerate)},
}
"""What a call gives without having computed, in words, and when it does"""


def computed(
    fn: Any, result: Any, passed: Iterable[Any]
) -> tuple[list[tuple[str, Any]], Structure]:
    """The leaves of a result, and its structure.

    Args:
        fn: the program.
        result: what it returns.
        passed: its arguments, which it may return.

    Raises:
        Refusal: it is an `async def` or a generator function, or returns what one gives.
    """
    leaves, structure = named_leaves(result)
    later = [leaf for _, leaf in leaves if type(leaf) in LATER]
    if later:
        known = set(map(id, passed))
        _check_computed(fn, [leaf for leaf in later if id(leaf) not in known])
    return leaves, structure


def _check_computed(fn: Any, later: list[Any]) -> None:
    """Refuse what computes later; no coroutine is left behind that was to be awaited."""
    for leaf in later:
        if inspect.iscoroutine(leaf) and inspect.getcoroutinestate(leaf) == inspect.CORO_CREATED:
            leaf.close()
    for leaf in later[:1]:
        what, when = LATER[type(leaf)]
        names = ("cr_code", "gi_code", "ag_code")
        code = next((getattr(leaf, name) for name in names if hasattr(leaf, name)), None)
        of = f" of {code.co_qualname}" if code is not None else ""
        raise Refusal(
            f"the program returns {what}{of}, which computes only when {when}",
            kind="unsupported",
            at=definition(code) if code is not None else place_of(fn),
            do="give a plain function, which computes and returns tensors or containers of them",
        )


class Outputs:
    """Collects the outputs of one run.

    Args:
        recorder: what recorded it.
        stand_ins: what the program computed with for each input; lifting adds some.
        lift: makes an input of a real tensor.
        written: the inputs that it wrote to.
        before: by what stood for it, each input that has other memory by now.
    """

    def __init__(
        self,
        recorder: Recorder,
        stand_ins: Callable[[], list[Any]],
        lift: Callable[[torch.Tensor], Abstract],
        written: Collection[int],
        before: Mapping[Alias, int],
    ) -> None:
        self.recorder, self.stand_ins = recorder, stand_ins
        self.lift, self.written, self.before = lift, written, before
        self.marked: dict[Output, Mark] = {}

    def of(self, role: Role, leaf: Any) -> Output:
        """The output that a leaf of a result is.

        Raises:
            Refusal: it is a view of an input that is written to, which no call can give.
        """
        if isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return Output(self.recorder.types.symbols.scalar(leaf), role)
        if not isinstance(leaf, torch.Tensor):
            if type(leaf) not in SIMPLE:
                check_no_number(role, leaf, self.recorder.sources.defined)
            return Output(leaf, role)
        return self._tensor(role, known_as(leaf, self.recorder))

    def _tensor(self, role: Role, placeholder: Abstract) -> Output:
        recorder, placeholders = self.recorder, self.stand_ins()
        if placeholder.ft_gradient is None and getattr(placeholder, "ft_grad", None) is not None:
            raise self._of_gradient(role, placeholder)
        value = returned_value(placeholder, recorder)
        same_as = next((i for i, each in enumerate(placeholders) if each is placeholder), None)
        owner = alias_of(placeholder).root
        moved = owner.moved is not None
        view_of = next(
            (
                i
                for i in self.written
                if placeholders[i] is owner.tensor()
                or self.before.get(owner) == i
                or (moved and alias_of(placeholders[i]).root is owner)
            ),
            None,
        )
        if same_as is not None:
            return Output(value, role, same_as)
        if (mark := self._mark(role, placeholder, value)) is not None:
            self.marked[output := self._created(role, placeholder, value, view_of)] = mark
            return output
        return self._created(role, placeholder, value, view_of)

    def _created(
        self, role: Role, placeholder: Abstract, value: Value, view_of: int | None
    ) -> Output:
        """The output that is no input."""
        if placeholder.ft_alias is None:
            return Output(value, role)
        alias, recorder, placeholders = alias_of(placeholder), self.recorder, self.stand_ins()
        self._check_not_moved(alias, value)
        relation, owner, below = _relation(alias, value), alias.root, None
        if relation is None and (below := self._viewed_loosely(alias, value)) is not None:
            followed = placeholders[below].requires_grad
            relation = "view" if followed and not value.type.requires_grad else None
        if view_of is None:
            return Output(value, role, relation=relation, base=below)
        of = recorder.types.of
        seen, base = of(placeholder), of(placeholders[view_of])
        retyped = (seen.dtype, seen.lazy) != (base.dtype, base.lazy)
        followed = value.type.requires_grad and not placeholder.ft_leaf
        if retyped or (followed and alias.share is Share.MEMORY):
            overwritten = recorder.aliasing.overwritten.values()
            raise Refusal(
                "the program returns a view of an input it writes to, of another type or history",
                kind="aliased outputs",
                at=next(h.origin.frame for h in overwritten if h.alias is owner),
                do="return a clone of the view, or take the view outside of the captured program",
            )
        top = alias.up_to_history()[0]
        separate = alias.own_history if followed else top is not alias.root
        through, step = None, None
        if followed and not separate:
            through, step = _taken(alias, value, view_of, base, recorder, placeholders)
        elif not followed and separate and top is not alias:
            through = _detached(top, view_of, base, placeholders)
        elif not followed and not separate:
            through = _argument(alias, view_of, placeholders)
        return Output(
            value, role, None, view_of, seen, separate, through, step, relation=relation, base=below
        )

    def _check_not_moved(self, alias: Alias, value: Value) -> None:
        """Refuse a view of an input that sees other memory by now: that is set after the graph.

        Of one that autograd follows the graph has a copy, so what is detached is refused, too.

        Raises:
            Refusal: it is one.
        """
        moved = [self.stand_ins()[index] for index in self.before.values()]
        at, views = alias, True
        while moved and at.parent is not None:
            at, views = at.parent, views and at.is_view
            if any((views or each.requires_grad) and at.tensor() is each for each in moved):
                raise Refusal(
                    "the program returns a view of an input to which it gives other memory (.data)",
                    kind="aliased outputs",
                    at=line_of(self.recorder, value),
                    do="return a clone of the view, or take the view outside of the program",
                )

    def _viewed_loosely(self, alias: Alias, value: Value) -> int | None:
        """The input that it is a view of, if it was taken under no_grad."""
        history, path = alias.up_to_history()
        own = any(member.step is not None and member.step.own for member in path)
        if own or not any(member.loose for member in path):
            return None
        first, base = history.tensor(), history.last.type
        if (value.type.dtype, value.type.lazy) != (base.dtype, base.lazy) or base.wrapped:
            return None
        return next((i for i, each in enumerate(self.stand_ins()) if each is first), None)

    def _mark(self, role: Role, tensor: Abstract, value: Value) -> Mark | None:
        """Class and attributes of a tensor of the program's own; None for a plain tensor.

        Raises:
            Refusal: an attribute that it has set holds more than a number or text.
        """
        own = {n: x for n, x in vars(tensor).items() if n not in torch_api.CACHED_SIZES}
        parameter = bool(getattr(tensor, "_is_param", False))
        for name, item in own.items():
            if type(item) not in SIMPLE:
                raise Refusal(
                    f"the program sets `{name}` of the {role}, a tensor that it has created",
                    kind="side effect",
                    at=line_of(self.recorder, value),
                    do="return what it holds beside the tensor",
                )
        return (parameter, tuple(own.items())) if parameter or own else None

    def marks(self, outputs: Iterable[Output]) -> Iterator[MarkOutput]:
        """The effects that mark these outputs in each call."""
        for number, output in enumerate(outputs if self.marked else ()):
            if output in self.marked:
                yield MarkOutput(number, *self.marked[output])

    def _of_gradient(self, role: Role, leaf: Abstract) -> Refusal:
        """The refusal of a leaf that has a gradient; as state, later calls find both."""
        recorder = self.recorder
        with torch.enable_grad():
            value = recorder.autograd.place(value_of(leaf, recorder))
        later = (FIRST_CALL,) if role.kind == "state" else ()
        return Refusal(
            f"the {role} is a tensor that the program has made, and has a gradient, which a"
            " graph gives apart",
            kind="side effect",
            at=line_of(recorder, value),
            do=("give both: tensor.detach(), tensor.grad", *later),
        )


def _relation(alias: Alias, value: Value) -> Relation | None:
    """What it is to autograd otherwise than its value: with another counter, or no view."""
    if alias.parent is None or value.type.sparse or value.type.wrapped:
        return None
    if alias.version is not alias.root.version and not value.type.requires_grad:
        top = alias
        while top.parent is not None and top.parent.version is alias.version:
            top = top.parent
        detached = top.step is not None and top.step.func is DETACH
        return ("data" if top is alias else "view of data") if detached else None
    reshaped = alias.before_moving.parent is None
    return "owner" if reshaped and not value.type.requires_grad else None


def _argument(alias: Alias, view_of: int, stand_ins: Sequence[Any]) -> Output | None:
    """The argument that it is a view of, if that is one of several in a memory."""
    at = alias.parent
    while at is not None and at.parent is not None:
        tensor = at.tensor()
        passed = next((i for i, each in enumerate(stand_ins) if each is tensor), view_of)
        if passed != view_of:
            return Output(at.last, Role("output", ""), passed)
        at = at.parent
    return None


def _detached(top: Alias, view_of: int, base: TensorType, stand_ins: Sequence[Any]) -> Output:
    """What `detach()` gave of a written input, of which something that is returned is a view.

    `stand_ins`: of the inputs, of which one may be it.
    """
    tensor, seen = top.tensor(), place(top, top.last)
    passed = next((i for i, each in enumerate(stand_ins) if each is tensor), None)
    if passed is not None:
        return Output(top.last, Role("output", ""), passed)
    seen = seen.but(offset=seen.offset + base.offset)
    return Output(top.last, Role("output", ""), None, view_of, seen, True)


def _taken(
    alias: Alias, value: Value, view_of: int, base: TensorType, recorder: Recorder,
    stand_ins: Sequence[Any],
) -> tuple[Output | None, ViewStep | None]:  # fmt: skip
    """How autograd has a view of a written input: the view that it was taken of, and the call.

    Without the former it was taken of the input itself; without the latter it is by strides, as
    after a write. `stand_ins`: of the inputs, of which one may be a view of another.
    """
    above = alias.parent
    if above is None or above.parent is None or _is_left(above):
        return None, _taken_by(alias, recorder)
    seen = place(above, above.last)
    if (seen.dtype, seen.lazy) != (base.dtype, base.lazy):
        return None, None
    maker = maker_of(recorder, value)
    if maker is None or above.last not in maker.operands:
        return None, None  # of the input itself, after a write
    type, role = seen.but(offset=seen.offset + base.offset), Role("output", "")
    tensor = above.tensor()
    passed = next((i for i, each in enumerate(stand_ins) if each is tensor), None)
    if passed is not None:
        return Output(above.last, role, passed), _taken_by(alias, recorder)
    through, step = _taken(above, above.last, view_of, base, recorder, stand_ins)
    output = Output(above.last, role, None, view_of, type, through=through, step=step)
    return output, _taken_by(alias, recorder)


def _is_left(alias: Alias) -> bool:
    """Whether it is an input in the shape that operators in place gave it last."""
    return alias.moved is None and alias.parent is not None and alias.parent.moved is alias


def _taken_by(alias: Alias, recorder: Recorder) -> ViewStep | None:
    """The call of a view, if that is what autograd still has, and it takes no other tensor."""
    step = alias.step
    if step is None or step.several or step.kwargs or step.by_strides:
        return None
    maker = maker_of(recorder, alias.last)
    called = maker is not None and maker.target is step.func
    return step if called and values_in(step.args) == [step.base] == [*step.args[:1]] else None
