"""Check a call of a cut against what the capture relied on, before anything runs."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from foretrace import torch_api
from foretrace.errors import Attempt, Refusal
from foretrace.ir.program.call_requirements import PythonGuards, check_repeatable
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import ModuleCall
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.program.walk import called_in, every_op
from foretrace.ir.pydata.arguments import containers_of, with_repeats
from foretrace.ir.pydata.containers import named_leaves
from foretrace.ir.pydata.plain_data import same
from foretrace.ir.symbols.substitution import Numbers, Size
from foretrace.lowering.emit.python_source import Source
from foretrace.runtime.guards.argument_guards import WAS_OWN
from foretrace.runtime.guards.broken import Broken, reporting_lines
from foretrace.runtime.guards.guard import message, shown
from foretrace.runtime.guards.guard_list import GuardList
from foretrace.runtime.guards.identity_guards import IS_OWN
from foretrace.runtime.guards.tensor_guards import TensorFacts, one_tensor
from foretrace.session.run.aliased_inputs import check_shared_memory, without_views

AGAIN = "capture again with inputs like these"
GRAD_MODE = "capture under the grad mode of the call, or use foretrace.compile"
ON_GRAD_MODE = ("is_grad_enabled", "enable_grad", "set_grad_enabled", "inference_mode")
AUTOCAST = "capture under the autocast of the call, or use foretrace.compile"
UNHOOKED = "call it outside of the hooks, or use foretrace.compile"
UNSEEN = "call it outside of the mode, or use foretrace.compile"
DEFAULT_DTYPE = "capture under the default dtype of the call, or use foretrace.compile"
DYNAMIC = "pass dynamic_shapes= to capture for sizes that vary"


class CallGuards:
    """Checks the calls of a record's cuts.

    The guards are one generated function, written when the first call needs it, and again where a
    cut has since asked more of open sizes.
    """

    def __init__(self, recorded: Recording) -> None:
        self.recorded = recorded
        self._checks = dict[PythonGuards | None, tuple[int, Callable[[list[Any]], Any]]]()
        """by what the backward of a graph has read"""

    def inputs(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        graph: Graph | None = None,
    ) -> tuple[list[Any], Numbers]:
        """The graph's inputs from a call's arguments and the live parameters, and the symbols.

        Args:
            args: the call's positional arguments.
            kwargs: its keyword arguments.
            graph: the one that is called; None: none with a backward.

        Raises:
            Refusal: the call breaks a guard.
        """
        for change in self.recorded.changes:
            check_repeatable(change)
        self._check_around(hooks=_trains(graph))
        passed = self._form(args, kwargs)
        found = self._check(None if graph is None else graph.reads)(passed)
        if isinstance(found, Broken):
            raise refusal_of(found)
        tensors, sizes = found
        writes = {mutation.index: mutation.value for mutation in self.recorded.mutations}
        shared = without_views(tensors, self.recorded.requires)
        check_shared_memory(shared, set(writes), lambda i: self.recorded.defined_at(writes[i]))
        return tensors, sizes

    def _check_around(self, *, hooks: bool) -> None:
        """Check what is on around a call, as far as no guard of what was read does.

        Raises:
            Refusal: it is not as it was, or would see the graph in the program's place.
        """
        if torch_api.autocast_devices() != self.recorded.requires.autocast:
            raise broken("autocast is not as it was when the program was captured", AUTOCAST)
        now, then = torch.get_default_dtype(), self.recorded.requires.default_dtype
        if now != then:
            raise broken(f"the default dtype is {now}, the capture had {then}", DEFAULT_DTYPE)
        if torch_api.saving_watched() and (hooks or self.recorded.asks_gradients):
            raise broken("hooks see what autograd saves (saved_tensors_hooks)", UNHOOKED)
        if torch_api.foreign_function_modes():
            raise broken("a mode sees torch functions, which would see the graph's", UNSEEN)
        if torch_api.modules_hooked() and self._loaded_modules:
            raise broken("hooks of all modules do not see those of a loaded program", UNHOOKED)

    def _check(self, reads: PythonGuards | None) -> Callable[[list[Any]], Any]:
        count, known = len(self.recorded.guards), self._checks.get(reads)
        if known is None or known[0] != count:
            known = self._checks[reads] = count, _checking(self.recorded, reads)
        return known[1]

    @property
    def _loaded_modules(self) -> bool:
        """Whether it calls modules that are not there: it is from a file, which has no hooks."""
        ambient = self.recorded.requires.python.ambient
        return not ambient and any(map(_calls_module, every_op(self.recorded.ops)))

    def check_grad_mode(self) -> None:
        """Check that the grad mode is as it was, where the program depends on it.

        Raises:
            Refusal: it is not.
        """
        requires = self.recorded.requires
        minds = self.knows_grad_mode or requires.asks_mode
        if minds and torch.is_grad_enabled() != requires.grad_mode:
            raise broken("grad mode is not as it was when the program was captured", GRAD_MODE)

    @property
    def knows_grad_mode(self) -> bool:
        """Whether the program's code asks for it, or may switch it."""
        return not self.recorded.requires.python.mentioned.isdisjoint(ON_GRAD_MODE)

    def grad_mode(self) -> torch.set_grad_enabled | torch.inference_mode:
        """Sets the call's grad mode for a forward cut, or on where the program turns it on.

        Raises:
            Refusal: it is not as it was, and the program depends on it.
        """
        self.check_grad_mode()
        on = torch.is_grad_enabled()
        if not on and self.knows_grad_mode and follows(self.recorded.ops):
            return torch.inference_mode(mode=False)
        return torch.set_grad_enabled(on)

    def _form(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The leaves that are inputs; the others are as they were."""
        requires, passed = self.recorded.requires, []
        whole = {*map(id, requires.shared.whole_arguments)}
        leaves, structure = named_leaves((args, kwargs), whole=whole)
        if with_repeats(structure, (args, kwargs), whole) != requires.in_structure:
            if not whole <= {*map(id, containers_of(args, kwargs))}:
                raise broken(f"an argument {WAS_OWN}")
            raise broken("the arguments are nested in another way than those of the capture")
        read = requires.shared.containers.keys() - whole
        if read and not read.isdisjoint(map(id, containers_of(args, kwargs, whole))):
            raise broken(IS_OWN)
        for name, (_, leaf) in zip(requires.names, leaves, strict=True):
            if name not in requires.constants:
                passed.append(leaf)
            elif isinstance(leaf, torch.Tensor):
                raise broken(f"{name} is a tensor, unlike in the capture")
            elif not _equal(leaf, requires.constants[name]):
                before = requires.constants[name]
                raise broken(f"{name} is {shown(leaf)}, the capture saw {shown(before)}")
        return passed


def _trains(graph: Graph | None) -> bool:
    return graph is not None and graph.kind in ("joint", "forward")


def _equal(leaf: Any, before: Any) -> bool:
    """Whether an argument that is no tensor is what it was; its class may not compare them."""
    attempt = Attempt(Exception)
    with attempt:
        return same(leaf, before)
    return False


def _calls_module(op: Op) -> bool:
    return isinstance(op.target, ModuleCall)


def follows(ops: Iterable[Op]) -> bool:
    """Whether anything the program did is followed by autograd."""
    return any(op.followed for op in called_in(ops))


def _checking(recorded: Recording, reads: PythonGuards | None) -> Callable[[list[Any]], Any]:
    """A function of the arguments that are inputs: a Broken, or the inputs and the symbols."""
    source = Source()
    conditions = CutConditions(source, recorded)
    conditions.write(reads)
    inputs = "".join(f"{name}, " for name in conditions.inputs)
    sizes = ", ".join(
        f"{source.bind(symbol, 'symbol')}: {symbol}" for symbol in sorted(conditions.bound, key=str)
    )
    source.add(*reporting_lines(conditions.checks, source.space, f"[{inputs}], {{{sizes}}}"))
    return source.function("guards", "arguments")


class CutConditions(GuardList):
    """What a cut relies on: nothing of the modes that a call runs under."""

    def write(self, reads: PythonGuards | None) -> None:
        """Collect all checks."""
        self.outside(reads)
        self.kernels()
        requires = self.recorded.requires
        count = len(requires.names) - len(requires.constants)
        passed = [self.source.names.new("argument") for _ in range(count)]
        if passed:
            self.line(f"{''.join(name + ', ' for name in passed)} = arguments")
        self.take(passed)
        self._distinct()
        for item, local in zip(self.recorded.inputs, self.inputs, strict=True):
            if item.size is None:
                facts = TensorFacts.of_type(item.role.name, item.value.type)
                differs = self.source.bind(facts.difference, "difference")
                self.add(f"not {differs}({local})", f"{differs}({local})")
            else:
                words = f"{item.role.name} is {{}}, the capture saw an int"
                self.add(f"type({local}) is int", message(words, f"repr({local})[:60]"))
        self.sizes()
        self.answers(self.recorded.answered)

    def _distinct(self) -> None:
        """Inputs that were several tensors are several still."""
        pairs = zip(self.recorded.inputs, self.inputs, strict=True)
        tensors = {local: item.role.name for item, local in pairs if item.size is None}
        if len(tensors) > 1:
            all, names = ", ".join(tensors), [*tensors.values()]
            differs = self.source.bind(partial(one_tensor, names), "one_tensor")
            self.add(f"len({{*map(id, ({all}))}}) == {len(tensors)}", f"{differs}({all})")


def refusal_of(found: Broken) -> Refusal:
    """The refusal of a call for which a guard does not hold."""
    do = found.do or (DYNAMIC if found.reason.startswith("size ") else AGAIN)
    more = ("or change the line so that it does not depend on this",) if found.at else ()
    return Refusal(
        f"guard broken: {found.reason}", kind="guard broken", at=found.at, do=(do, *more)
    )


def number(size: Size, sizes: Numbers) -> int:
    """A size as a number."""
    return size if isinstance(size, int) else int(size.xreplace(sizes))


def broken(what: str, do: str = AGAIN) -> Refusal:
    """The refusal of a call that breaks a guard."""
    return Refusal(f"guard broken: {what}", kind="guard broken", do=do)
