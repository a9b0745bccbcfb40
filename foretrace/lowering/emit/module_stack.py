"""The origin of a node, in torch.export's form in `node.meta`."""

from collections import Counter
from collections.abc import Container

from foretrace.errors import Frame
from foretrace.ir.program.origin import ModuleCall


class ModuleStacks:
    """`nn_module_stack` and `stack_trace` of nodes; each call and line is formatted once.

    Args:
        registered: the paths of the program's modules: a module that it creates is in no stack.
            None: all are.
    """

    def __init__(self, registered: Container[str] | None = None) -> None:
        self._registered = registered
        self._keys: dict[ModuleCall, str] = {}
        self._counts = Counter[str]()
        self._stacks: dict[ModuleCall, dict[str, tuple[str, str]]] = {}
        self._lines: dict[int, dict[str, str]] = {}
        """by the id of a frame, of which each line has one"""

    def of(self, call: ModuleCall) -> dict[str, tuple[str, str]]:
        """From the outermost call to this one: key -> (path, class); a dict of the caller's own."""
        known = self._stacks.get(call)
        if known is None:
            named, calls = self._registered, call.stack()
            known = {
                self.key(each): (each.path, each.qualified_class)
                for each in calls
                if named is None or each.path in named
            }
            self._stacks[call] = known
        return known.copy()

    def key(self, call: ModuleCall) -> str:
        """`L__self__path`, and `@1`, `@2` for the second and third call of the same module."""
        if call not in self._keys:
            count = self._counts[call.path]
            self._counts[call.path] += 1
            self._keys[call] = f"L__self__{call.path}" + (f"@{count}" if count else "")
        return self._keys[call]

    def line(self, frame: Frame | None) -> dict[str, str]:
        """`stack_trace`: the user's line, as a traceback has it; nothing where there is none."""
        known = self._lines.get(id(frame))
        if known is None:
            known = self._lines[id(frame)] = _formatted(frame)
        return known


def _formatted(frame: Frame | None) -> dict[str, str]:
    if frame is None:
        return {}
    function = frame.function.rpartition(".")[2]
    head = f'  File "{frame.file}", line {frame.line}, in {function}'
    return {"stack_trace": f"{head}\n    {frame.text}\n"}
