"""The recording of a program with its semantics, which all cuts of it share."""

from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.errors import counted
from foretrace.ir.program.interface import Target
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.program.value_guard import ValueGuard
from foretrace.ir.program.walk import called_in
from foretrace.ir.source.call_site import Asked
from foretrace.ir.symbols.symbols import Guard
from foretrace.lowering.pipelines.passes import Watch, verifying
from foretrace.lowering.pipelines.verify import verify_graph, verify_record
from foretrace.runtime.guards.cut_guards import CallGuards


class Tree:
    """One recorded run and its target."""

    def __init__(
        self, recorded: Recording, semantics: TargetSemantics, *, verify: bool = False
    ) -> None:
        self.recorded, self.semantics, self.verify = recorded, semantics, verify
        self.calls = CallGuards(recorded)
        if verify:
            verify_record(recorded, semantics.inference.again)

    @property
    def target(self) -> Target:
        """The device that the program was captured for."""
        return self.semantics.target

    @property
    def guards(self) -> tuple[Guard | ValueGuard, ...]:
        """The conditions on sizes and values of a later call, each with the user's line."""
        return self.recorded.guards

    def __repr__(self) -> str:
        written = sum(1 for _ in called_in(self.recorded.ops))
        return shown("program", self, f"{counted(written, 'op')} as written")

    def check(self, *graphs: Graph) -> None:
        """With `verify`, check graphs of it against docs/stages.md."""
        for graph in graphs if self.verify else ():
            verify_graph(graph, self.recorded, self.semantics.inference.again)

    @property
    def watch(self) -> Watch | None:
        """With `verify`, the check of each graph between passes."""
        if not self.verify:
            return None
        return verifying(self.recorded, self.semantics.inference.again)

    def asked(self) -> Asked:
        """The context in which refusals name the program."""
        return Asked("capture", self.recorded.requires.defined)


def shown(what: str, program: Tree, inside: str) -> str:
    """The repr of a program or of a cut."""
    at = program.recorded.requires.defined
    name = f"{at.function} ({at.file}:{at.line})" if at is not None else "torch's own"
    return f"<{what} of {name}: {inside}, target {program.target.name}>"
