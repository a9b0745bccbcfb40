"""The path of an op in the tree: the user's line, modules, the op as written, each level below."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import isroutine
from types import MappingProxyType
from typing import Any

from foretrace import torch_api
from foretrace.autograd.derivatives.target_semantics import COMPOSITE
from foretrace.autograd.eager_history.history_ops import HISTORY
from foretrace.errors import Frame
from foretrace.inspect.explain.explanation import Link, shown_path
from foretrace.ir.program.op import Backward, Op, Write, target_name
from foretrace.ir.program.origin import Choice, ModuleCall
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.program.walk import every_op, subgraphs_of
from foretrace.ir.values.value import Value
from foretrace.lowering.cuts.runtime_asserts import ASSERT_NUMBER
from foretrace.lowering.cuts.scalar_ops import TAKEN
from foretrace.lowering.partition.recompute import AGAIN
from foretrace.operators.abstract_tensors.subclass_types import dispatched
from foretrace.tracer.higher_order.views_as_copies import COPIES
from foretrace.tracer.recorder.autograd_hooks import HookCall
from foretrace.tracer.recorder.function_target import FunctionCall

TABLE, LAYOUT = "decomposition", "layout"
"""Choices of a decomposition table"""


def path_to(ops: Sequence[Op], wanted: Op) -> list[Op]:
    """The ops from the top of the tree down to `wanted`, both included; empty if it is not there.

    An op has no link to the op above it, so the tree is searched: first the module calls that the
    op names, then everything.
    """
    calls = set(wanted.origin.module.stack()) if wanted.origin.module else set()
    return _search(ops, wanted, calls) or _search(ops, wanted, None)


def _search(ops: Sequence[Op], wanted: Op, calls: set[ModuleCall] | None) -> list[Op]:
    """The path to `wanted`; `calls`: the module calls to enter, None for all."""
    for path in _paths(ops, lambda op: calls is None or not _elsewhere(op, calls)):
        if path[-1] is wanted or same_call(path[-1], wanted):
            return path
    return []


def _paths(ops: Sequence[Op], enter: Callable[[Op], bool]) -> Iterator[list[Op]]:
    """The path to each op, depth first and without recursion; `enter`: whether to go below it."""
    path: list[Op] = []
    levels = [iter(ops)]
    while levels:
        op = next(levels[-1], None)
        if op is None:
            levels.pop()
            del path[-1:]
            continue
        yield [*path, op]
        inside = [inner for program in subgraphs_of(op) for inner in program.ops]
        below = [*inside, *(op.region or ())]
        if below and enter(op):
            path.append(op)
            levels.append(iter(below))


def _elsewhere(op: Op, calls: set[ModuleCall]) -> bool:
    return isinstance(op.target, ModuleCall) and op.target not in calls


def same_call(op: Op, wanted: Op) -> bool:
    """Whether a cut's op is the tree's, but for its results."""
    if op.target is not wanted.target:
        return False
    if subgraphs_of(op):
        return bool(op.outs) and op.outs is wanted.outs
    same_body = op.region is not None and op.region is wanted.region
    if same_body or (bool(op.args) and op.args is wanted.args):
        return True
    return op.leaf and bool(op.outs) and op.outs == wanted.outs  # of operands that were unwrapped


def makers_of(ops: Sequence[Op], value: Value) -> list[Op]:
    """The ops that have `value` among their outs: as written, then each one below."""
    for *_, op in _paths(ops, lambda _: True):
        if value in op.outs:
            return [op, *makers_of(op.region or (), value)]
    return []


class Levels:
    """The paths of one program's ops in a cut."""

    def __init__(self, recorded: Recording, graph: Graph) -> None:
        self.recorded, self.cut = recorded, graph.kind
        self.target = recorded.target.name

    def links(self, op: Op) -> Iterator[Link]:
        """The path of a forward op."""
        whole, *pieces = pieces_to(op)
        yield from self._in_tree(whole, pieces)
        yield from table_links(whole, pieces)
        if pieces and _opened_by_table(pieces[-1]):
            yield Link("leaf", "nothing is below it: the table has no entry that opens it")

    def _in_tree(self, op: Op, pieces: Sequence[Op]) -> Iterator[Link]:
        """The path to an op of the tree, and why it ends there, unless a table opened the op."""
        path = path_to(self.recorded.ops, op)
        yield self._line(op)
        for call in op.origin.module.stack() if op.origin.module else ():
            yield _module_link(call)
        if not path and op.target is ASSERT_NUMBER:
            yield Link("asserted", "what the line asked of a number that data decides")
            return
        if not path:
            yield Link("written", f"{print_call(op)} is not in the tree", missing=True)
            return
        calls = [each for each in path if not isinstance(each.target, ModuleCall)]
        for above, each in zip([None, *calls], calls, strict=False):
            yield self._level(above, each)
        if not pieces:
            yield self._end(op)

    # ---- the top ------------------------------------------------------------------------------

    def _line(self, op: Op) -> Link:
        frame = op.origin.frame
        if frame is not None:
            return line_link(frame)
        call = op.origin.module
        outermost = call.stack()[0].qualified_class if call else ""
        if call is None or outermost.startswith("torch."):
            program = outermost or "a function of a library"
            return Link("line", f"none of yours: the program is {program} itself")
        if op.target is call and call.outer is None:
            return Link("line", "none of yours: capture calls the program itself")
        return Link("line", f"the user's line of {print_call(op)}", missing=True)

    # ---- one level ----------------------------------------------------------------------------

    def _level(self, above: Op | None, op: Op) -> Link:
        facts: dict[str, Any] = {"op": name_of(op), "outs": [repr(out.type) for out in op.outs]}
        if above is None:
            return Link("written", print_call(op), _write_notes(op), facts)
        how, rule = self._opened(above, op)
        facts |= {"by": rule, **_choice_facts(above.choice)}
        return Link("opened", print_call(op), how + _write_notes(op), facts, missing=rule is None)

    def _opened(self, op: Op, inner: Op) -> tuple[tuple[str, ...], str | None]:
        """What opens an op, as lines and as one word; None if that is not known.

        `inner` is the op below.
        """
        chosen, name = choice_notes(op.choice), target_name(op.target)
        if isinstance(op.target, Write) or op.writes:
            form = f"by the functional form of {name}: what it writes is a new value"
            return (form, *chosen), "functional form"
        if has_composite_kernel(op):
            kernel = f"by {name}'s {COMPOSITE} kernel, as in eager on {self.target}"
            return (kernel, *chosen), COMPOSITE
        if isinstance(op.target, FunctionCall):
            return (f"by the forward of {name}, an autograd.Function", *chosen), "autograd.Function"
        for program in subgraphs_of(op):
            if inner in every_op(program.ops):
                return (f"{name} holds it, in {program.name}",), "program"
        if isinstance(op.target, Backward):
            return (f"what the derivative of {target_name(op.target.of.target)} calls",), "rule"
        if dispatched(op):
            return ("by the __torch_dispatch__ of the class of an operand",), "wrapper"
        if chosen:
            return chosen, "choice"
        return (f"what takes {name} apart is not known",), None

    def _end(self, op: Op) -> Link:
        """Why the path ends at an op."""
        facts = _choice_facts(op.choice)
        if isinstance(op.target, ModuleCall):
            return Link("whole", f"{op.target} is one node", ("keep= names it",), facts)
        if isinstance(op.target, HookCall):
            return Link("leaf", f"{op.target.name} runs in the backward, as in eager", facts=facts)
        if subgraphs := subgraphs_of(op):
            names = [program.name for program in subgraphs]
            notes, facts = ("programs of their own",), {"programs": names, **facts}
            return Link("holds", ", ".join(names), (*notes, *choice_notes(op.choice)), facts)
        if not op.leaf:
            return Link("whole", f"{target_name(op.target)} is one node", self._kept(op), facts)
        if op.choice is not None:
            return Link("leaf", "nothing is below it", choice_notes(op.choice), facts)
        if has_composite_kernel(op):
            text = f"{name_of(op)} has a {COMPOSITE} kernel and is not opened by it"
            return Link("leaf", text, missing=True)
        return Link("leaf", f"nothing is below it: it has no {COMPOSITE} kernel")

    def _kept(self, op: Op) -> tuple[str, ...]:
        chosen = choice_notes(op.choice)
        if self.cut == "export":
            return ("the export cut has ops as they are written", *chosen)
        return ("keep= names it", *chosen)


# ---- words --------------------------------------------------------------------------------------


def line_link(frame: Frame) -> Link:
    """The user's line and the code on it."""
    facts, code = frame.to_dict(), (frame.text,) if frame.text else ()
    return Link("line", f"{shown_path(frame.file)}:{frame.line} in {frame.function}", code, facts)


def _module_link(call: ModuleCall) -> Link:
    facts = {"path": call.path, "class": call.qualified_class}
    path = f"{call.path}: " if call.path else ""
    return Link("module", f"{path}{call.qualified_class}", facts=facts)


IN_PLACE_OF: Mapping[Choice | None, str] = MappingProxyType({COPIES: "copied", TAKEN: "number"})
"""What stands for another op, though no table has opened that, and the word for it"""


def pieces_to(op: Op) -> list[Op]:
    """The op that a decomposition table opened, and its pieces down to this one."""
    way = [op]
    while way[-1].piece_of is not None:
        way.append(way[-1].piece_of)
    return way[::-1]


def table_links(whole: Op, pieces: Sequence[Op]) -> Iterator[Link]:
    """The links of a decomposition table's pieces, level by level."""
    for above, piece in zip((whole, *pieces), pieces, strict=False):
        facts = {"op": name_of(piece), **_choice_facts(piece.choice)}
        if piece.choice is not None and piece.choice.what == LAYOUT:
            yield Link("layout", print_call(piece), choice_notes(piece.choice), facts)
            continue
        if piece.choice in IN_PLACE_OF:
            word = IN_PLACE_OF[piece.choice]
            yield Link(word, print_call(piece), choice_notes(piece.choice), facts)
            continue
        if _of_a_policy(piece):
            text = f"{target_name(piece.target)} runs again for a backward of the step"
            yield Link("made again", text, choice_notes(piece.choice), facts)
            continue
        if of_history(piece):
            text = f"{target_name(piece.target)} keeps what autograd follows as in the program"
            yield Link("history", text, (piece.choice.reason,) if piece.choice else (), facts)
            continue
        by_table = above is whole or (above.choice is not None and above.choice.what == TABLE)
        by = "the decomposition table given" if by_table else f"its {COMPOSITE} kernel"
        facts["by"] = TABLE if by_table else COMPOSITE
        yield Link("opened", print_call(piece), (f"{target_name(above.target)} by {by}",), facts)


def _opened_by_table(piece: Op) -> bool:
    return not (of_history(piece) or _of_a_policy(piece) or piece.choice in IN_PLACE_OF)


def of_history(op: Op) -> bool:
    """Whether a forward cut has the op only for autograd to follow it as in the program."""
    return op.choice is not None and op.choice.what == HISTORY


def _of_a_policy(op: Op) -> bool:
    """Whether a policy runs the op a second time."""
    return op.choice is not None and op.choice.what == AGAIN


def choice_notes(choice: Choice | None) -> tuple[str, ...]:
    """The choice and its reason, and what was rejected."""
    if choice is None:
        return ()
    rejected = [f"not {name}: {reason}" for name, reason in choice.rejected]
    return (f"{choice.what} is {choice.value}: {choice.reason}", *rejected)


def _choice_facts(choice: Choice | None) -> dict[str, object]:
    """A choice as data."""
    if choice is None:
        return {}
    rejected = [{"value": name, "reason": reason} for name, reason in choice.rejected]
    return {
        "choice": {
            "what": choice.what,
            "value": choice.value,
            "reason": choice.reason,
            "rejected": rejected,
        }
    }


def _write_notes(op: Op) -> tuple[str, ...]:
    """Notes about the writes of an op."""
    if isinstance(op.target, Write):
        way = " -> ".join(target_name(step.func) for step in op.target.steps)
        where = (f"it writes through a view of its base: {way}",) if way else ()
        hidden = () if op.target.followed else ("autograd does not follow this write",)
        return (*where, *hidden)
    return ("it writes in place",) if op.writes else ()


def has_composite_kernel(op: Op) -> bool:
    """Whether the installed torch has a kernel that decomposes the op above autograd."""
    target = op.target
    return isinstance(target, torch_api.OpOverload) and torch_api.kernel_for(target, COMPOSITE)


def name_of(op: Op) -> str:
    """The target in full: aten.mm.default."""
    target = op.called[0]
    return target_name(target) if isroutine(target) else str(target)


def print_call(op: Op) -> str:
    """The target and the types of its results."""
    outs = ", ".join(repr(out.type) for out in op.outs)
    return f"{name_of(op)} -> {outs}" if outs else name_of(op)
