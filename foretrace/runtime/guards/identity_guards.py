"""Which arguments are one tensor, or a tensor that the program has: one key, guarded as a whole.

That two inputs of the graph have not become one is asked of all inputs at once: by torch's own
check in a compiled callable, by `CutConditions` in a cut.
"""

from collections.abc import Iterator, Mapping

import torch

from foretrace.ir.program.call_requirements import PythonGuards
from foretrace.ir.pydata.containers import same_keys
from foretrace.ir.pydata.paths import repeats
from foretrace.ir.pydata.read_facts import ReadFact
from foretrace.runtime.guards.size_guards import SizeGuards

REPEATED = "which arguments are one container is not as it was in the capture"
IS_OWN = "an object among the arguments is one that the program reads itself now"


class IdentityGuards(SizeGuards):
    """Adds the guards on the identity of arguments."""

    def identities(self, arguments: list[str]) -> None:
        """Check them; `arguments` are the names of those that are inputs."""
        requires, inputs = self.recorded.requires, self.recorded.inputs
        for first, second in requires.inputs.repeated:
            one, other = requires.of_place(first), requires.of_place(second)
            self._same(arguments[first], arguments[second], f"{one} and {other}")
        for place, index in requires.shared.merged:
            one, other = requires.of_place(place), inputs[index].role.name
            self._same(arguments[place], self.inputs[index], f"{one} and {other}")
        names = dict(_compared(requires.python))
        for index, tensor in requires.shared.own.items():
            one, other = inputs[index].role.name, names.get(id(tensor), "one of the program's own")
            self._same(self.inputs[index], self.source.bind(tensor, "own"), f"{one} and {other}")
        self._others(names)

    def copied(self, containers: list[str]) -> None:
        """Check that no container among the arguments is one that the program reads itself."""
        read = self.recorded.requires.shared.containers
        if read and containers:
            known = self.source.bind(frozenset(read), "containers")
            all = "".join(f"{name}, " for name in containers)
            self.add(f"{known}.isdisjoint(map(id, ({all})))", repr(IS_OWN))

    def repeated(self, names: list[str] | None) -> None:
        """Check that the containers among the arguments are one object where they were.

        `names`: of all that are no tuples of plain data; None if there are others.
        """
        requires = self.recorded.requires
        again = requires.in_structure.again
        if names is not None and not again:
            if len(names) > 1:
                text = f"len({{*map(id, ({', '.join(names)}))}}) == {len(names)}"
                self.add(text, repr(REPEATED))
            return
        own = self.source.bind(frozenset(map(id, requires.shared.whole_arguments)), "own")
        found, equal = (self.source.bind(f, f.__name__) for f in (repeats, same_keys))
        then = self.source.bind(again, "again")
        self.add(f"{equal}({found}((args, kwargs), {own}), {then})", repr(REPEATED))

    def _same(self, one: str, other: str, both: str) -> None:
        words = f"{both} were one tensor in the capture and are two now"
        self.add(f"{one} is {other}", repr(words))

    def _others(self, names: Mapping[int, str]) -> None:
        """Check that no argument is a tensor that the program reads, if only to compare it.

        `names`: of all these, by id; those that are inputs are looked at elsewhere.
        """
        inputs, own = self.recorded.inputs, self.recorded.requires.shared.own
        known = {*(id(item.tensor) for item in inputs), *map(id, own.values())}
        others = {key: name for key, name in names.items() if key not in known}
        passed = [
            (item.role.name, local)
            for index, (item, local) in enumerate(zip(inputs, self.inputs, strict=True))
            if item.argument is not None and item.size is None and index not in own
        ]
        if others and passed:
            found = ReadElsewhere(others, [name for name, _ in passed])
            here = self.source.bind(found, "elsewhere")
            all = "".join(f"{local}, " for _, local in passed)
            self.add(f"{here}.names.keys().isdisjoint(map(id, ({all})))", f"{here}.words({all})")


class ReadElsewhere:
    """Tensors that the program reads, which other guards keep alive.

    Args:
        names: of each, by id.
        arguments: the names of those that are to be none of them.
    """

    def __init__(self, names: Mapping[int, str], arguments: list[str]) -> None:
        self.names, self.arguments = names, arguments

    def words(self, *tensors: object) -> str:
        """Which is one of them."""
        pairs = zip(self.arguments, tensors, strict=True)
        name, key = next((name, id(each)) for name, each in pairs if id(each) in self.names)
        return f"{name} and {self.names[key]} are one tensor now"


def _compared(python: PythonGuards) -> Iterator[tuple[int, str]]:
    """The tensors that the program may compare others with: the id and a name of each."""
    for read in python.reads:
        for each in read.compared:
            if isinstance(each, torch.Tensor):
                yield id(each), _name(read, each)


def _name(read: ReadFact, tensor: torch.Tensor) -> str:
    return read.name if any(each is tensor for each in read.objects) else f"a key of {read.name}"
