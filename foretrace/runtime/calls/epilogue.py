"""The end of a generated call: what is written back, what is returned, what else is changed."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import sympy

from foretrace.autograd.backward.gradient_hooks import at_input, holds_tensors, standing
from foretrace.errors import Refusal
from foretrace.ir.program.call_requirements import check_repeatable
from foretrace.ir.program.op import Tree, Value
from foretrace.ir.program.recording import Mutation, Output, Recording, Role
from foretrace.ir.pydata.state import put_all
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.lowering.emit.python_code import Straight
from foretrace.lowering.emit.python_sizes import size_text
from foretrace.lowering.emit.python_source import Source
from foretrace.runtime.calls.run_cut import count_write, in_memory, lie_as, loose, write_back
from foretrace.runtime.calls.untrainable_results import after_backward
from foretrace.tracer.recorder.autograd_hooks import RETAIN


def core_of(recorded: Recording) -> Recording:
    """The program without outputs that are found by way of an input; each other one once.

    Raises:
        Refusal: it writes what autograd follows to an input.
    """
    written = [m for m in recorded.mutations if not m.rebound]
    for mutation in written:
        if recorded.writes_followed(mutation):
            role = recorded.inputs[mutation.index].role
            raise Refusal(
                f"the program writes a value that autograd follows to {role}",
                kind="followed write",
                at=recorded.made_at(mutation.value),
                do=('use backend="eager"', "write a detached value, or return it instead"),
            )
    own = [
        o.value for o in recorded.outputs if o.same_as is None and (o.view_of is None or o.apart)
    ]
    own += [m.value for m in recorded.mutations if m.rebound]
    values: dict[Tree, None] = dict.fromkeys(value for value in own if isinstance(value, Value))
    values |= dict.fromkeys(_numbers_of(recorded))
    outputs = [Output(v, Role("output", f"result_{i}")) for i, v in enumerate(values)]
    return replace(recorded, outputs=outputs, mutations=written)


def _numbers_of(recorded: Recording) -> list[sympy.Symbol]:
    """The numbers that data decides and that the program returns, or has as sizes of a view."""
    given: list[Any] = [output.value for _, output in recorded.as_made]
    for _, output in recorded.as_made:
        seen, step = output.view_type, output.step
        given += [] if seen is None else [*seen.shape, *seen.stride, seen.offset]
        given += [] if step is None else list(step.args)
    named = {symbol for item in given for symbol in free_symbols(item)}
    return sorted(named & recorded.symbols.data, key=str)


def call_core(
    source: Source,
    recorded: Recording,
    inputs: Sequence[str],
    call: str,
    numbers: Sequence[str] = (),
    written: Collection[int] = (),
) -> list[str]:
    """Lines that get the core from `call` and write back; expressions of the program's outputs.

    Args:
        source: takes the lines.
        recorded: the program.
        inputs: names of its inputs.
        call: what is called with them.
        numbers: expressions of what it gets beside.
        written: which inputs it writes to itself, so that it does not give their new contents.
    """
    core = core_of(recorded)
    left = [m for m in recorded.mutations if m.rebound or m.index not in written]
    values = [*(o.value for o in core.outputs), *(m.value for m in left if not m.rebound)]
    made = [source.names.new("result") if isinstance(v, Value) else str(v) for v in values]
    names = {item.value: name for item, name in zip(recorded.inputs, inputs, strict=True)}
    names.update(zip(values, made, strict=True))
    assigned = f"({', '.join(made)}{',' * (len(made) == 1)}) = " if made else ""
    count_lines(source, recorded, inputs)
    source.add(f"{assigned}{call}({', '.join([*inputs, *numbers])})")
    for value, name in zip(values, made, strict=True):
        if recorded.made_leaf(value):
            source.add(f"{name} = {name}.detach().requires_grad_()")
    for mutation in left:
        write_line(source, recorded, mutation, inputs[mutation.index], names[mutation.value])
    count_all(source, [inputs[index] for index in sorted(written)])
    reshape_lines(source, recorded, inputs)
    straight = Straight(source, recorded.symbols, names)
    return leaf_texts(source, straight, recorded, inputs)


def write_line(
    source: Source, recorded: Recording, mutation: Mutation, live: str, new: str
) -> None:
    """The line that writes back what an input holds after the run."""
    before = recorded.inputs[mutation.index].value.type
    if mutation.hidden and not mutation.rebound:
        source.add(f"{live}.data.copy_({new})")
        return
    if not (mutation.rebound or before.requires_grad or mutation.value.type.requires_grad):
        source.add(f"{live}.copy_({new})")  # autograd follows neither
        return
    call = source.bind(write_back, "write_back")
    item = source.bind(recorded.inputs[mutation.index], "input")
    source.add(f"{call}({item}, {live}, {new}, {source.bind(mutation, 'mutation')})")


def count_all(source: Source, names: Sequence[str]) -> None:
    """The line by which autograd knows of what was written in place."""
    if names:
        source.add(f"{source.bind(count_write, 'count_write')}(({', '.join(names)},))")


def count_lines(source: Source, recorded: Recording, inputs: Sequence[str]) -> None:
    """The lines by which autograd knows, before the run, of inputs that get another shape."""
    for index in recorded.requires.reshaped:
        source.add(f"{source.bind(count_write, 'count_write')}({inputs[index]})")


def reshape_lines(source: Source, recorded: Recording, inputs: Sequence[str]) -> None:
    """The lines that give inputs the shapes that operators in place gave them."""
    for index, type in recorded.requires.reshaped.items():
        shape, stride = (
            ", ".join(size_text(n) for n in part) for part in (type.shape, type.stride)
        )
        call = source.bind(lie_as, "lie_as")
        source.add(f"{call}({inputs[index]}, [{shape}], [{stride}])")


def leaf_texts(
    source: Source,
    straight: Straight,
    recorded: Recording,
    inputs: Sequence[str],
    *,
    spelled: bool = True,
) -> list[str]:
    """What the program returns at each place.

    `spelled`: the lines do not run under the grad mode that the program had, so that a view has a
    history unless it is told.
    """
    texts = {
        place: _leaf_text(source, straight, recorded, output, inputs, spelled=spelled)
        for place, output in recorded.as_made
    }
    return [texts[place] for place in range(len(recorded.outputs))]


def _leaf_text(
    source: Source,
    straight: Straight,
    recorded: Recording,
    output: Output,
    inputs: Sequence[str],
    *,
    spelled: bool,
) -> str:
    value = output.value
    if isinstance(value, sympy.Basic):
        return straight.tree(value)
    if not isinstance(value, Value):
        return source.literal(value, "returned")
    if output.same_as is not None:
        return inputs[output.same_as]
    bare = (spelled or output.apart) and recorded.loose(value)
    unfollowed = f"{source.bind(loose, 'loose')}(%s)" if bare else "%s"
    if recorded.spent(value):
        bare, unfollowed = True, f"{source.bind(after_backward, 'after_backward')}(%s)"
    if output.view_of is None or output.view_type is None:
        name = straight.names[value]
        return straight.named_once(value, unfollowed % name) if bare else name
    live, seen = inputs[output.view_of], output.view_type
    base = recorded.inputs[output.view_of].value.type.offset
    kept = recorded.followed(value) if spelled else value.type.requires_grad
    of = f"{live}.detach()" if output.apart or not kept else live
    if of == live and output.through is not None:
        of = straight.named_once(output.through.value, "")
    shape, stride = ([size_text(n) for n in part] for part in (seen.shape, seen.stride))
    offset = f"{size_text(seen.offset)} - {size_text(base)} + {live}.storage_offset()"
    view = f"{of}.as_strided([{', '.join(shape)}], [{', '.join(stride)}], {offset})"
    if output.step is not None and kept:
        view = straight.taken(output.step, of)
    if recorded.made_leaf(value):
        view = f"{view}.requires_grad_()"
    if output.apart and recorded.followed(value):
        view = f"{source.bind(in_memory, 'in_memory')}({view}, {straight.names[value]})"
    return straight.named_once(value, unfollowed % view)


def check_changes(recorded: Recording) -> None:
    """Refuse what the program does to Python state and no call can do again.

    Raises:
        Refusal: it is more than a name bound to plain data or to tensors.
    """
    for change in recorded.requires.changed:
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
        if not on and op.target.way == RETAIN:
            pairs = zip(recorded.outputs, leaves, strict=True)
            on = [leaf for output, leaf in pairs if output.value is op.operands[0]][:1]
        lines += [f"{source.bind(op.target, str(op.target))}({name})" for name in on]
    return lines


def repeat_changes(
    source: Source, recorded: Recording, inputs: Sequence[str], leaves: Sequence[str]
) -> list[str]:
    """Lines that change Python state as the run did; `leaves` are the outputs."""
    requires = recorded.requires
    redone = [source.bind(each.redo, f"set_{each.place.name}") for each in requires.changed]
    cleared = (f"{inputs[index]}.grad = None" for index in requires.cleared)
    every, given = ("".join(f"{each}, " for each in names) for names in (leaves, inputs))
    put = source.bind(partial(put_all, requires.states), "put")
    last = [f"{put}(({every}), ({given}), (args, kwargs))"] if requires.states else []
    flags = (f"{inputs[i]}.requires_grad_({on})" for i, on in requires.flags.items())
    return [*(f"{redo}()" for redo in redone), *cleared, *last, *flags]
