"""The guards of one record, as checks over the local names of its inputs.

There is one list. A compiled callable reads it as a fast path that gives up at the first check that
fails, a cut as a function that returns what failed (`cut_guards.py`).
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

import torch

from foretrace import torch_api
from foretrace.ir.program.call_requirements import BackwardGuards, PythonGuards, memory_of
from foretrace.ir.program.interface import Input
from foretrace.ir.program.op import target_name
from foretrace.ir.program.value_guard import ValueGuard
from foretrace.ir.program.walk import every_op
from foretrace.ir.pydata.members import MISSING
from foretrace.ir.pydata.state import tensor_of
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.symbols.symbols import MANY
from foretrace.lowering.emit.python_sizes import size_text
from foretrace.lowering.emit.python_source import Source
from foretrace.operators.abstract_tensors.subclass_types import Holds
from foretrace.python_state.reads.backward_reads import beyond
from foretrace.runtime.guards.broken import Broken, reporting_lines
from foretrace.runtime.guards.guard import Check, message, of_answer
from foretrace.runtime.guards.identity_guards import IdentityGuards
from foretrace.runtime.guards.state_guards import StateGuards
from foretrace.runtime.guards.tensor_guards import Absent, Beside, Elsewhere, hooks_now


class GuardList(IdentityGuards):
    """Collects the checks of one record.

    `by_torch`: torch's own guard of its state is among them.

    `inputs` has the local name of each input of the graph afterwards, `bound` the symbols that have
    one.
    """

    by_torch: ClassVar[bool] = False

    def outside(self, backward: PythonGuards | None = None) -> None:
        """Check modules and Python state; `backward`: also what a backward has read of it."""
        own = self.recorded.requires.python
        self.checks += StateGuards(self.source, own, by_torch=self.by_torch).checks
        if backward is not None:
            self.checks += StateGuards(self.source, beyond(own, backward)).checks

    def kernels(self) -> None:
        """Check the rows of torch's ambient state that have chosen bodies of the ops."""
        python = self.recorded.requires.python
        names = {target_name(op.target) for op in every_op(self.recorded.ops) if op.body}
        for row, before in python.kernels:
            if any(part in name for part in row.chooses for name in names):
                one = PythonGuards(ambient=[(row, before)])
                self.checks += StateGuards(self.source, one).checks

    def take(self, arguments: list[str]) -> None:
        """Bind a local name for every input; check which arguments are one tensor.

        Args:
            arguments: names of those that are inputs.
        """
        for item in self.recorded.inputs:
            self.inputs.append(self._input(item, arguments))
        self.identities(arguments)
        self._tied()
        self._together()
        self._states()
        self._rebound()
        self._forms()
        self._gradients()
        self._hooks()
        self._set_on()
        self._beside()

    def sizes(self) -> None:
        """Check open sizes: their values, their ranges, and what the program asked of them.

        In this order: what it asked may divide by a size that is out of range. The whole range
        comes last, as it follows from what was asked, which has a line.
        """
        self.bind()
        self.ranges(above=-sys.maxsize, below=MANY)
        for item, local in zip(self.recorded.inputs, self.inputs, strict=True):
            if item.value.type.symbols:
                self.geometry(item, local)
        self.places()
        for guard in self.recorded.symbols.guards():
            if guard.symbols <= self.bound:
                symbols = sorted(map(str, guard.symbols))
                values = ", ".join(f"{s} = {{}}" for s in symbols)
                words = f"{guard.condition} does not hold, with {values}"
                self.add(size_text(guard.condition), message(words, *symbols), guard.frame)
        self.ranges(above=MANY, below=sys.maxsize)

    def places(self) -> None:
        """Check where inputs begin in memory, and which are no views."""
        self._begins()
        self._whole()
        self._rooms()
        self._wrapped()
        self._inferring()

    def answers(self, asked: Sequence[ValueGuard]) -> None:
        """Check the program's questions about values again."""
        if not asked:
            return
        bound = sorted(self.bound, key=str)
        sizes = ", ".join(f"{self.source.bind(s, 'symbol')}: {s}" for s in bound)
        inputs = "".join(f"{name}, " for name in self.inputs)
        holds = self.source.names.new("holds")
        again = self.source.bind(asked[0].again, "again")
        self.line(f"{holds} = {again}({{{sizes}}}, ({inputs}))")
        for each in asked:
            question = self.source.bind(each, "question")
            condition, of = f"{holds}({question})", of_answer(each)
            self.checks.append(
                Check(condition, repr(each.broken), at=each.frame, asked=each, of=of)
            )
        self.line(f"del {holds}")  # it has all that it computed

    # ---- inputs ------------------------------------------------------------------------------

    def _input(self, item: Input, arguments: list[str]) -> str:
        if item.gradient_of is not None:
            local = self.source.names.new(item.role.name)
            self.line(f"{local} = {self.inputs[self.recorded.inputs.index(item.gradient_of)]}.grad")
            self.add(f"{local} is not None", repr(f"{item.role.name} is None now"))
            return local
        if item.argument is not None:
            return self._argument(item, arguments[item.argument])
        if item.read is not None:
            local = self.source.names.new(item.role.name)
            self.line(f"{local} = {self.source.bind(item.read, 'read')}()")
            return local
        if item.owner is None:
            return self.source.bind(item.tensor, item.role.name)
        module, name = item.owner
        local, tables = self.source.names.new(item.role.name), torch_api.tensor_tables(module)
        table = tables[name not in tables[0]]
        self.line(f"{local} = {self.source.bind(table, 'table')}[{name!r}]")
        return local

    def _argument(self, item: Input, argument: str) -> str:
        """The name of an argument, or of the tensor built from it."""
        if item.number is None and not item.memory:
            return argument
        local, make = self.source.names.new(item.role.name), memory_of if item.memory else tensor_of
        kind = f", {self.source.bind(item.number, 'kind')}" * (item.number is not None)
        self.line(f"{local} = {self.source.bind(make, make.__name__)}({argument}{kind})")
        return local

    def _together(self) -> None:
        """Arguments that are views of one memory."""
        for memory, views in self.recorded.requires.inputs.together.items():
            names = ", ".join(self.inputs[index] for index in (memory, *views))
            several = ", ".join(self.recorded.inputs[index].role.name for index in views)
            one = self.source.bind(one_memory, "one_memory")
            self.add(f"{one}(({names}))", repr(f"{several} share no memory now, as they did"))

    def _states(self) -> None:
        """Further places of a tensor that the program leaves in several."""
        for read, index in self.recorded.requires.python.tied:
            there = f"{self.source.bind(read, 'read')}()"
            words = f"{read.place.name} and {self.recorded.inputs[index].role.name} are two tensors"
            self.add(f"{there} is {self.inputs[index]}", repr(f"{words} now"))

    def _rebound(self) -> None:
        """Check that a tensor bound from outside is no other tensor of the program.

        The program's `is` compared two tensors in the capture.
        """
        python, inputs = self.recorded.requires.python, self.recorded.inputs
        if python.rebound:
            before = [each.before for each in python.locations]
            elsewhere = self.source.bind(Elsewhere(before), "elsewhere")
            first = [self.inputs[index] for index in python.rebound]
            rest = [n for item, n in zip(inputs, self.inputs, strict=True) if item.size is None]
            two = [f"({', '.join(names)},)" for names in (first, rest)]
            words = "a tensor that is bound outside of the program is one that it has elsewhere"
            self.add(f"not {elsewhere}.any({', '.join(two)})", repr(words))

    def _forms(self) -> None:
        """Containers that the program fills."""
        for read in self.recorded.requires.python.forms:
            words = repr(f"{read.place.name} holds more or less than it did")
            self.add(f"{self.source.bind(read, 'form')}.holds", words)

    def _hooks(self) -> None:
        """The hooks that a backward of the program's own has run."""
        hooked = self.recorded.requires.inputs.hooked
        bare = [index for index, tables in hooked.items() if not any(tables)]
        if bare:
            first = self.source.bind(torch_api.first_hooked, "first_hooked")
            asked = f"{first}(({', '.join(self.inputs[index] for index in bare)},))"
            roles = self.source.bind([str(self.recorded.inputs[i].role) for i in bare], "roles")
            self.add(f"{asked} is None", f"{roles}[{asked}] + ' has other hooks'")
        for index, hooks in hooked.items():
            if index in bare:
                continue
            now = self.source.bind(hooks_now, "hooks_now")
            local, item = self.inputs[index], self.recorded.inputs[index]
            known = self.source.bind(hooks, "hooks")
            self.add(f"{now}({local}) == {known}", repr(f"{item.role} has other hooks"))

    def _gradients(self) -> None:
        """Whether there is a `.grad`, where the program has read it."""
        for index, place in self.recorded.requires.inputs.gradients.items():
            local, name = self.inputs[index], self.recorded.inputs[index].role.name
            if place is None:
                self.add(f"{local}.grad is None", repr(f"{name}.grad is there now, it was None"))
            elif self.recorded.inputs[place].gradient_of is not self.recorded.inputs[index]:
                words = repr(f"{name}.grad is another tensor than it was")
                self.add(f"{local}.grad is {self.inputs[place]}", words)

    def _begins(self) -> None:
        """Where an input begins in memory, if the program asked."""
        on = self.recorded.requires.inputs
        for index, at in (on.viewed | on.begins).items():
            item, now = self.recorded.inputs[index], f"{self.inputs[index]}.storage_offset()"
            then = item.value.type.offset
            words = (
                f"{item.role.name} begins at element {{}} of its memory, in the capture at {then}"
            )
            if free_symbols(then) <= self.bound:
                self.add(f"{now} == {size_text(then)}", message(words, now), at)

    def _whole(self) -> None:
        """Inputs that may be no views, as where the program detaches them in place."""
        for index, at in self.recorded.requires.inputs.whole.items():
            is_view, name = self.source.bind(torch_api.is_view, "is_view"), self.inputs[index]
            words = f"{self.recorded.inputs[index].role.name} is a view, which it was not"
            self.add(f"not {is_view}({name})", repr(words), at)

    def _rooms(self) -> None:
        """How much memory inputs have, where forward-mode autograd asks."""
        for index, (then, at) in self.recorded.requires.inputs.rooms.items():
            room = self.source.bind(torch_api.room, "room")
            now, name = f"{room}({self.inputs[index]})", self.recorded.inputs[index].role.name
            words = f"the memory of {name} has room for {{}} elements, in the capture for {then}"
            if free_symbols(then) <= self.bound:
                self.add(f"{now} == {size_text(then)}", message(words, now), at)

    def _inferring(self) -> None:
        """Which inputs are inference tensors, where the program has asked."""
        for index, then in self.recorded.requires.inputs.inferring.items():
            words = f"{self.recorded.inputs[index].role.name} is {'no' if then else 'an'}"
            condition = f"{self.inputs[index]}.is_inference() is {then}"
            self.add(condition, repr(f"{words} inference tensor, unlike in the capture"))

    def _wrapped(self) -> None:
        """What inputs hold that wrap others."""
        for item, local in zip(self.recorded.inputs, self.inputs, strict=True):
            if item.size is None and item.value.type.wrapped:
                holds = Holds(item.role.name, item.value.type.wrapped)
                differs = self.source.bind(holds, "holds")
                self.add(f"not {differs}({local})", f"{differs}({local})")

    def _set_on(self) -> None:
        """Attributes of Python's on inputs; of those that are absent, one check for each input."""
        absent: dict[int, list[str]] = {}
        for index, name, item in self.recorded.requires.inputs.set_on:
            if item is MISSING:
                absent.setdefault(index, []).append(name)
                continue
            words = f"{self.recorded.inputs[index].role.name}.{name}"
            nothing = self.source.bind(MISSING, "MISSING")
            self.value(f"{self.inputs[index]}.__dict__.get({name!r}, {nothing})", words, item)
        for index, names in absent.items():
            none = self.source.bind(frozenset(names), "absent")
            space, role = f"{self.inputs[index]}.__dict__", self.recorded.inputs[index].role
            words = f"{self.source.bind(Absent(role.name), 'absent')}({none}, {space})"
            self.add(f"{none}.isdisjoint({space})", words)

    def _beside(self) -> None:
        """Tensors that the program has at hand, and of which it may ask all but the values."""
        python, inputs = self.recorded.requires.python, self.recorded.inputs
        known = {id(item.tensor) for item in inputs}
        known |= {id(read.place.before) for item in inputs if (read := item.read) is not None}
        for each in python.locations:
            tensor = each.before
            if not isinstance(tensor, torch.Tensor) or id(tensor) in known:
                continue
            known.add(id(tensor))
            local = self.source.bind(tensor, "beside")
            differs = self.source.bind(Beside(each.name, tensor, python.mentioned), "differs")
            self.add(f"not {differs}({local})", f"{differs}({local})")

    def _tied(self) -> None:
        """Further places of a parameter that is in several."""
        inputs = self.recorded.inputs
        known = {
            id(item.tensor): name
            for item, name in zip(inputs, self.inputs, strict=True)
            if item.owner is not None
        }
        first = {(id(i.owner[0]), i.owner[1]) for i in inputs if i.owner is not None}
        for state in self.recorded.requires.python.modules:
            live = torch_api.tensor_tables(state.module)
            for table, before in zip(live, ("_parameters", "_buffers"), strict=True):
                for name, tensor in state.registered.get(before, {}).items():
                    if tensor is not None and (id(state.module), name) not in first:
                        here = self.source.bind(table, "table")
                        local = known.get(id(tensor)) or self.source.bind(tensor, "tied")
                        reason = repr(f"{state.path}.{name} is another tensor than it was")
                        self.add(f"{here}[{name!r}] is {local}", reason)


def unlike_then(reads: BackwardGuards) -> Callable[[], Broken | None]:
    """A function that gives the first that a backward would find otherwise now than its forward."""
    source, found = Source(), replace(reads, reads=[*reads.reads, *reads.left])
    source.add(*reporting_lines(StateGuards(source, found).checks, source.space))
    return source.function("reads", "")


def one_memory(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether tensors share memory, and those that autograd follows, a history."""
    one = len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1
    return one and torch_api.of_one_history(tensors)
