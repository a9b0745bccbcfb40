"""The end of a generated call: write-backs, outputs, and effects on Python state."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import sympy

from foretrace.autograd.backward.gradient_hooks import holds_tensors, standing
from foretrace.autograd.eager_history.op_facts import locate
from foretrace.errors import Refusal
from foretrace.ir.program.call_requirements import check_repeatable
from foretrace.ir.program.effect import Phase
from foretrace.ir.program.interface import Mutation, Output
from foretrace.ir.program.op import Op, ViewStep
from foretrace.ir.program.recording import Recording
from foretrace.ir.symbols.substitution import Size
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree, Value
from foretrace.lowering.cuts.output_views import Lacking, OutputViews
from foretrace.lowering.emit.python_code import Straight
from foretrace.lowering.emit.python_sizes import size_text
from foretrace.lowering.emit.python_source import Source
from foretrace.lowering.partition.outer_views import NO_VIEWS, OuterViews
from foretrace.lowering.reinplace.early_writes import counted_before
from foretrace.runtime.calls.core import core_of, is_output, views_read
from foretrace.runtime.calls.output_tensors import MARKS, in_memory, put_there
from foretrace.runtime.calls.run_cut import count_write, write_back
from foretrace.runtime.guards.argument_guards import result_text
from foretrace.tracer.recorder.autograd_hooks import RETAIN


class CoreCall:
    """Writes the call of a core, and what the program's call does with what that gives.

    Args:
        source: takes the lines.
        recorded: the program.
        inputs: names of its inputs.
        written: the inputs that the core writes to itself: it does not give their new contents.
        views: those that are taken outside of it.
    """

    def __init__(
        self, source: Source, recorded: Recording, inputs: Sequence[str],
        written: Collection[int] = (), views: OuterViews = NO_VIEWS,
    ) -> None:  # fmt: skip
        self.source, self.recorded, self.inputs = source, recorded, inputs
        self.written, self.views = written, views
        self._left = [m for m in recorded.mutations if m.rebound or m.index not in written]
        self._values = [o.value for o in core_of(recorded, views).outputs]
        self._values += [m.value for m in self._left if not (m.rebound or is_output(recorded, m))]
        named = (isinstance(value, Value) for value in self._values)
        pairs = zip(self._values, named, strict=True)
        self._names = {i.value: name for i, name in zip(recorded.inputs, inputs, strict=True)}
        self._straight = Straight(source, recorded.symbols, self._names)
        self._results = [source.names.new("result") if name else str(v) for v, name in pairs]

    def begin(self, call: str, numbers: Sequence[str] = ()) -> None:
        """The call: of what it is, with the inputs and numbers."""
        results = self._results
        self._take(self.views.before)
        read = [self._names[value] for value, _ in views_read(self.recorded, self.views)]
        assigned = f"({', '.join(results)}{',' * (len(results) == 1)}) = " if results else ""
        count_effects(self.source, self.recorded, self.inputs)
        self.source.add(f"{assigned}{call}({', '.join([*self.inputs, *read, *numbers])})")

    def end(self) -> list[str]:
        """What follows, with the writes to inputs; expressions of the program's outputs."""
        source, recorded, inputs = self.source, self.recorded, self.inputs
        names = self._names
        names.update(zip(self._values, self._results, strict=True))
        for value, name in zip(self._values, self._results, strict=True):
            if recorded.is_new_leaf(value):
                source.add(f"{name} = {name}.detach().requires_grad_()")
        source.add(*Ending(source, inputs).lines(recorded, "memory"))
        left = [(m, new_content(m, inputs, names)) for m in self._left]
        done = [(m, inputs[m.index]) for m in recorded.mutations if m not in self._left]
        write_lines(source, recorded, inputs, [*left, *done])
        self._take(self.views.after)
        return leaf_texts(source, self._straight, recorded, inputs)

    def _take(self, views: Sequence[Op]) -> None:
        """The lines that take views; all are kept."""
        self._straight.run(views, [*self._names, *(out for op in views for out in op.outs)])


def new_content(mutation: Mutation, inputs: Sequence[str], names: Mapping[Value, str]) -> str:
    """The name of what an input holds after the run, or of the tensor that it is bound to."""
    same_as = mutation.same_as
    return names[mutation.value] if same_as is None else inputs[same_as]


def write_lines(
    source: Source,
    recorded: Recording,
    inputs: Sequence[str],
    news: Iterable[tuple[Mutation, str]],
) -> None:
    """The lines that write back what inputs hold, and let version counters count as in eager.

    Args:
        source: takes them.
        recorded: the program.
        inputs: names of its inputs.
        news: what is written with the name of that; the input itself, where it is written already.
    """
    counted = list[int]()
    for mutation, new in news:
        live = inputs[mutation.index]
        if new == live and not mutation.rebound:
            counted += mutation.counts
        else:
            _write_line(source, recorded, mutation, live, new)
            counted += mutation.recounted
    _count_all(source, [inputs[index] for index in counted])


def _write_line(
    source: Source, recorded: Recording, mutation: Mutation, live: str, new: str
) -> None:
    before = recorded.inputs[mutation.index].value.type
    own = mutation.rebound or mutation.kept
    quiet = not (own or before.requires_grad or mutation.value.type.requires_grad)
    if mutation.hidden or (mutation.uncounted and quiet):
        source.add(f"{live}.data.copy_({new})")
        return
    if quiet:
        source.add(f"{live}.copy_({new})")  # autograd follows neither
        return
    call = source.bind(write_back, "write_back")
    item = source.bind(recorded.inputs[mutation.index], "input")
    source.add(f"{call}({item}, {live}, {new}, {source.bind(mutation, 'mutation')})")


def _count_all(source: Source, names: Sequence[str]) -> None:
    if names:
        source.add(f"{source.bind(count_write, 'count_write')}(({', '.join(names)},))")


def count_effects(
    source: Source, recorded: Recording, inputs: Sequence[str], ops: Sequence[Op] = ()
) -> None:
    """The line by which autograd knows, before the run, of inputs that effects write to.

    `ops`: those that run where autograd sees them.
    """
    _count_all(source, [inputs[index] for index in counted_before(recorded, ops)])


class Ending:
    """Collects the lines that effects add at the end of a generated call.

    Args:
        source: binds objects.
        inputs: names of the inputs.
        outputs: expressions of the outputs.
        result: an expression of what the call returns.
    """

    def __init__(
        self, source: Source, inputs: Sequence[str], outputs: Sequence[str] = (), result: str = ""
    ) -> None:
        self.inputs, self.outputs, self.result, self.built = inputs, outputs, result, "()"
        self.found = "()"
        self.name: Callable[[str], str] = source.names.new
        self.bind: Callable[[object, str], str] = source.bind
        self.size: Callable[[Size], str] = size_text

    def lines(self, recorded: Recording, phase: Phase) -> list[str]:
        """The lines of the effects of one phase."""
        groups = recorded.effects_in(phase)
        return [line for kind, effects in groups for line in kind.lines(effects, self)]


def leaf_texts(
    source: Source,
    straight: Straight,
    recorded: Recording,
    inputs: Sequence[str],
    *,
    explicit: bool = True,
    unseen: bool = False,
) -> list[str]:
    """An expression for each output of the program.

    `explicit`: the lines do not run under the program's grad mode, so a view has a history unless
    the lines detach it. `unseen`: autograd has not seen the ops, so that no view requires grad.
    """
    return OutputTexts(source, straight, recorded, inputs, explicit=explicit, unseen=unseen).all()


class OutputTexts(OutputViews[str]):
    """Expressions of the outputs; views and marked tensors have names of their own.

    Args:
        source: binds objects.
        straight: names values.
        recorded: the program.
        inputs: names of the inputs.
        explicit: as for `leaf_texts`.
        unseen: the same.
    """

    def __init__(
        self, source: Source, straight: Straight, recorded: Recording, inputs: Sequence[str], *,
        explicit: bool, unseen: bool,
    ) -> None:  # fmt: skip
        super().__init__(recorded)
        self.source, self.straight, self.inputs, self.explicit = source, straight, inputs, explicit
        self.marks_views = explicit or unseen

    def constant(self, place: int | None, item: Tree) -> str:
        """A size, or a literal."""
        size = isinstance(item, sympy.Basic)
        return self.straight.tree(item) if size else self.source.literal(item, "returned")

    def result(self, place: int | None, value: Value) -> str:
        """Its name."""
        return self.straight.names[value]

    def live(self, index: int) -> str:
        """The name of the input."""
        return self.inputs[index]

    def follows(self, place: int | None, value: Value) -> bool:
        """Where lines run under the program's grad mode, a view has the history that it gets."""
        return self.recorded.followed(value) if self.explicit else value.type.requires_grad

    def lacks(self, place: int | None, value: Value, output: Output) -> Lacking | None:
        """Under the program's grad mode, a view under no_grad is one."""
        lacks = super().lacks(place, value, output)
        return None if lacks == "loose" and not (self.marks_views or output.separate) else lacks

    def named(self, value: Value, built: str) -> str:
        """A name for it."""
        return self.straight.named_once(value, built)

    def detached(self, of: str, *, always: bool) -> str:
        """A call of `detach`."""
        return f"{of}.detach()"

    def taken(self, of: str, step: ViewStep, seen: TensorType) -> str:
        """The call of the view's own operator."""
        return self.straight.taken(step, of)

    def strided(self, of: str, seen: TensorType, index: int) -> str:
        """A call of `as_strided`; the input may begin elsewhere than the example did."""
        base = self.recorded.inputs[index].value.type.offset
        shape, stride = (", ".join(map(size_text, part)) for part in (seen.shape, seen.stride))
        begins = f"{self.inputs[index]}.storage_offset()"
        offset = f"{size_text(seen.offset)} - {size_text(base)} + {begins}"
        return f"{of}.as_strided([{shape}], [{stride}], {offset})"

    def leaf_in_memory(self, view: str, place: int, value: Value) -> str:
        """A call that gives the graph's leaf that memory."""
        put = self.source.bind(put_there, "put_there")
        return f"{put}({self.straight.names[value]}, {view})"

    def joined(self, view: str, place: int | None, value: Value) -> str:
        """A call that gives the view the history of the graph's result."""
        return f"{self.source.bind(in_memory, 'in_memory')}({view}, {self.straight.names[value]})"

    def marked(self, built: str, lacks: Lacking, base: int | None) -> str:
        """A call that gives what to autograd is as in eager."""
        of = "" if base is None else f", {self.live(base)}"
        return f"{self.source.bind(MARKS[lacks], lacks)}({built}{of})"


def check_changes(recorded: Recording) -> None:
    """Refuse what the program does to Python state and no call can do again.

    Raises:
        Refusal: it is more than a name bound to plain data or to tensors.
    """
    for change in recorded.changes:
        check_repeatable(change)


def register_hooks(
    source: Source, recorded: Recording, inputs: Sequence[str], leaves: Sequence[str]
) -> list[str]:
    """Lines that register on real tensors what no graph has: hooks of inputs, retained gradients.

    Raises:
        Refusal: a hook of an input holds a tensor of the run.
    """
    lines = list[str]()
    names = {i.value: [n] for i, n in zip(recorded.inputs, inputs, strict=True) if i.size is None}
    for op in standing(recorded):
        on = names.get(op.operands[0], [])
        if on and holds_tensors(op):
            raise at_input(op)
        if not on and (op.target.way == RETAIN or recorded.is_new_leaf(op.operands[0])):
            pairs = zip(recorded.outputs, leaves, strict=True)
            on = [leaf for output, leaf in pairs if output.value is op.operands[0]][:1]
        lines += [f"{source.bind(op.target, str(op.target))}({name})" for name in on]
    return lines


def end_lines(
    source: Source, recorded: Recording, inputs: Sequence[str], outputs: Sequence[str]
) -> list[str]:
    """Lines for the program's effects, and for its return."""
    built = result_text(source, recorded.out_structure, outputs)
    ending = Ending(source, inputs, outputs, built)
    lines = [*ending.lines(recorded, "state"), *ending.lines(recorded, "result")]
    return [*lines, f"return {ending.result}"]


def at_input(op: Op) -> Refusal:
    """A hook on the caller's own tensor, which sees gradients that no graph has."""
    return locate(Refusal(
        f"the hook {op.target.name} is on an input, and holds a tensor of the program", kind="hook",
        do=('use cut("joint")', "or register it on what is computed of the input: x.view_as(x)"),
    ), op)  # fmt: skip
