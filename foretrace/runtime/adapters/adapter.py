"""One compiler of another project: what it needs, what is opened for it, and how it is called."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx

from foretrace.errors import Refusal
from foretrace.ir.source.call_site import asking_line
from foretrace.runtime.adapters.opened import opened
from foretrace.runtime.adapters.parts import Parts, parted

Run: TypeAlias = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""What is compiled: contiguous tensors, to tensors of memory of its own"""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A compiler by its name.

    `packages` are those that it imports, `extra` what pip installs them by: `foretrace[extra]`.
    `build` compiles a functional graph of tensors; `opens` is what it alone is wrong of, or
    does not take, with what it gets instead.
    """

    name: str
    packages: tuple[str, ...]
    extra: str
    build: Callable[[fx.GraphModule], Run]
    opens: tuple[tuple[Any, Callable[..., Any]], ...] = ()

    def decompositions(self) -> Mapping[Any, Callable[..., Any]]:
        """What is opened for it, as `decompositions=` of a cut takes it."""
        return {**opened(), **dict(self.opens)}

    def compile(self, graph: fx.GraphModule, example: Sequence[Any]) -> Callable[..., Any]:
        """A callable of the inputs of a graph, which gives its results.

        Args:
            graph: functional, such as that of a cut with `decompositions`.
            example: its inputs, or fake ones.

        Raises:
            Refusal: a package is not installed, or the graph has open sizes; when it is called:
                with inputs of other types.
        """
        self.check_installed()
        parts = parted(graph, example)
        return Compiled(self.name, parts, self.build(parts.middle) if parts.computed else None)

    def check_installed(self) -> None:
        """Refuse what is not installed.

        Raises:
            Refusal: with the line for pip.
        """
        missing = [each for each in self.packages if not _there(each)]
        if missing:
            raise Refusal(
                f"the backend {self.name!r} needs {', '.join(missing)}, not installed here",
                kind="not installed",
                do=(f"pip install 'foretrace[{self.extra}]'", 'or use backend="eager"'),
            )


def _there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of what it is in
        return False


class Compiled:
    """The three parts of a graph, called one after the other; autograd follows nothing."""

    def __init__(self, name: str, parts: Parts, run: Run | None) -> None:
        self.name, self.parts, self.run = name, parts, run
        self.types = [(node, _type(node.meta["val"])) for node in parts.inputs]
        taken = parts.middle.graph.find_nodes(op="placeholder")[len(parts.places) :]
        self.dtypes = [node.meta["val"].dtype for node in taken]
        self.results = [node.meta["val"] for node in parts.computed]

    def __call__(self, *inputs: Any) -> Any:
        """Run it."""
        passed = [*inputs, *self.parts.constants]
        self._check(passed)
        with torch.no_grad():
            tensors = [passed[place] for place in self.parts.places]
            for each, dtype in zip(self.parts.before(*passed), self.dtypes, strict=True):
                tensor = each if isinstance(each, Tensor) else torch.tensor(each, dtype=dtype)
                tensors.append(tensor)
            found = self.run([each.detach().contiguous() for each in tensors]) if self.run else ()
            laid = map(_laid, found, self.results)
            return self.parts.after(*passed, *laid)

    def _check(self, passed: Sequence[Any]) -> None:
        if len(passed) != len(self.types):
            own = len(self.parts.constants)
            counts = len(self.types) - own, len(passed) - own
            raise self._refusal("takes {} inputs, not {}".format(*counts))
        for each, (node, known) in zip(passed, self.types, strict=True):
            if _type(each) != known:
                raise self._refusal(f"was compiled for {node.name} of {known}, not {_type(each)}")

    def _refusal(self, what: str) -> Refusal:
        return Refusal(
            f"what the backend {self.name!r} built {what}",
            kind="guard broken",
            at=asking_line(),
            do=("call it as it was compiled, or compile again", "foretrace.compile does so"),
        )


def _type(value: Any) -> str:
    """What was compiled for: a tensor by its dtype and sizes, any number."""
    return f"{value.dtype} {[*value.shape]}" if isinstance(value, Tensor) else "a number"


def _laid(found: Tensor, like: Tensor) -> Tensor:
    """A result with the strides of the graph's."""
    strides = like.stride()
    if found.stride() == strides or found.shape != like.shape:
        return found
    return found.new_empty_strided(found.shape, strides).copy_(found)
