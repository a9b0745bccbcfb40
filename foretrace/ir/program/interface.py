"""What goes in and out of a recorded program: inputs, outputs, their roles, what is written."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

from foretrace import torch_api
from foretrace.errors import Printed
from foretrace.ir.program.call_requirements import memory_of
from foretrace.ir.program.op import ViewStep
from foretrace.ir.pydata.state import StateRead, tensor_of
from foretrace.ir.symbols.substitution import Size
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree, Value, values_in

Kind: TypeAlias = Literal[
    "parameter", "buffer", "input", "captured", "constant", "tangent", "saved", "size",
    "output", "mutation", "gradient", "state",
]  # fmt: skip

NUMBER = TensorType((), (), torch.int64, torch.device("cpu"))
"""The type of the value of an input that is a size."""


PORTABLE = "portable"
"""The name of a target that any device can run"""


@dataclass(frozen=True, slots=True, repr=False)
class Target(Printed):
    """A device that a program is captured for; it need not be there.

    `own_kernels` names the operators ("aten::_fused_rms_norm") that have a composite kernel and
    a kernel of the device's own, which eager prefers. `build` names the file that says what else is
    known: one that is shipped or was added, or a path.
    """

    name: str
    device: torch.device
    capability: tuple[int, int] | None = None
    cudnn: tuple[int, ...] | None = None
    own_kernels: frozenset[str] = frozenset()
    build: str = ""

    @property
    def portable(self) -> bool:
        """Whether its graphs are for a device that nothing is known of: no fused kernels."""
        return self.name == PORTABLE

    def __str__(self) -> str:
        facts = []
        if self.capability is not None:
            facts.append("compute capability {}.{}".format(*self.capability))
        if self.cudnn is not None:
            facts.append("cuDNN " + ".".join(map(str, self.cudnn)))
        return f"{self.name} ({', '.join(facts)})" if facts else self.name


@dataclass(frozen=True, slots=True)
class Role:
    """What an input or an output is. Roles compose: the gradient of the parameter "w"."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        links = {"gradient": "gradient of", "mutation": "new value of", "tangent": "tangent of"}
        return f"{links.get(self.kind, self.kind)} {self.name}".rstrip()


@dataclass(slots=True, eq=False)  # not frozen: a capture makes hundreds
class Input:
    """A value that the program gets; `tensor` is the live tensor of a parameter or constant.

    An input with a `size` is a number and no tensor: its value is never an operand, as ops name
    sizes by expressions.
    """

    value: Value
    role: Role
    leaf: bool = False
    """whether it was a leaf of autograd, so that its gradient is accumulated there"""
    tensor: torch.Tensor | None = None
    owner: tuple[torch.nn.Module, str] | None = None
    """the module and attribute that hold a parameter or buffer"""
    argument: int | None = None
    """which of the tensors and sizes among the call's arguments it is"""
    hooked: bool = False
    """whether a hook of the user sees its gradient"""
    size: Size | None = None
    """the expression that the input is the value of"""
    gradient_of: "Input | None" = None
    """the input whose `.grad` it is, read at each call"""
    read: StateRead | None = None
    """reads it where calls of the program leave it"""
    memory: bool = False
    """whether it is all of the memory in which the argument lies"""
    number: type | None = None
    """of a number of Python's, which the tensor holds: its type"""

    def live(self, arguments: Sequence[torch.Tensor] = ()) -> torch.Tensor | None:
        """The tensor to run with; an argument from `arguments`, or None without them."""
        if self.gradient_of is not None:
            of = self.gradient_of.live(arguments)
            return None if of is None else of.grad
        if self.read is not None:
            return self.read()
        if self.argument is not None and arguments:
            found: Any = arguments[self.argument]
            if self.memory:
                return memory_of(found)
            return found if self.number is None else tensor_of(found, self.number)
        if self.owner is None:
            return self.tensor
        module, name = self.owner
        live: torch.Tensor = getattr(module, name)
        return live


def size_input(size: Size, role: Role, argument: int | None = None) -> Input:
    """An input that is a size."""
    return Input(Value(NUMBER, role.name), role, argument=argument, size=size)


Relation: TypeAlias = Literal["data", "view of data", "owner", "view"]
"""`.data` has a version counter of its own; a view of that; an owner is a view of nothing; a view
under no_grad is one, though a graph detaches what it computes there"""


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """A value, None or constant that the program gives."""

    value: Tree
    role: Role
    same_as: int | None = None
    """the input that the program handed back"""
    view_of: int | None = None
    """the written input whose memory the output shares"""
    view_type: TensorType | None = None
    """how the output looks at that memory"""
    separate: bool = False
    """autograd has it as no view of that input: as what the graph gives, or as `detach()` does"""
    through: "Output | None" = None
    """what it is a view of in that memory, returned or not: a view, or what `detach()` gave"""
    step: ViewStep | None = None
    """the call that autograd has it by; None for one that is seen by its strides, or is separate"""
    relation: Relation | None = None
    """what to autograd it is otherwise than its value"""
    base: int | None = None
    """the input that it is a view of, if it was taken under no_grad"""

    @property
    def detached(self) -> bool:
        """Whether autograd has it as a view of nothing: a call of `detach()` gave it."""
        return self.separate and self.through is None

    @property
    def computed(self) -> bool:
        """Whether a graph gives it: it is no input, nor a view that a call takes of one."""
        joined = self.separate and any(v.type.requires_grad for v in values_in(self.value))
        return self.same_as is None and (self.view_of is None or joined)


@dataclass(frozen=True, slots=True, repr=False)
class Signature(Printed):
    """Roles of every input and output, in the order of the graph's."""

    inputs: tuple[Role, ...]
    outputs: tuple[Role, ...]

    def __str__(self) -> str:
        rows = [f"  in   {role}" for role in self.inputs]
        return "\n".join([*rows, *(f"  out  {role}" for role in self.outputs)])

    @property
    def descriptors(self) -> torch_api.aot_metadata.Descriptors:
        """Torch's own description of each, as of `aot_export_joint_with_descriptors`."""
        both = self.inputs, self.outputs
        kinds = ([(role.kind, role.name) for role in one] for one in both)
        return torch_api.aot_metadata.described(*kinds)

    def to_dict(self) -> dict[str, list[dict[str, str]]]:
        """The same, for programs."""
        both = {"inputs": self.inputs, "outputs": self.outputs}
        return {
            side: [{"kind": role.kind, "name": role.name} for role in roles]
            for side, roles in both.items()
        }


@dataclass(frozen=True, slots=True, eq=False)
class Mutation:
    """What an input holds after the run."""

    index: int
    value: Value
    hidden: bool = False
    """autograd sees none of the writes: of `.data`, or to batch norm's statistics"""
    rebound: bool = False
    """the program bound the buffer's attribute to another tensor"""
    kept: bool = False
    """autograd follows none of the writes: the input keeps the history that it has"""
    unwritten: bool = False
    """the program gave it another shape in place, and wrote nothing: only its history is another"""
    owner: tuple[torch.nn.Module, str] | None = None
    """where the buffer was bound; its tensor may have other names, too"""
    same_as: int | None = None
    """the input whose tensor the buffer's attribute is bound to"""
    counted: tuple[int, ...] | None = None
    """the inputs whose counters count the writes, one by one (decision 085); None: its own, one"""

    @property
    def uncounted(self) -> bool:
        """Whether the copy of the new content is a write that no version counter counts."""
        return self.index not in self.counts

    @property
    def counts(self) -> tuple[int, ...]:
        """The inputs whose version counters count the writes, one by one."""
        own = () if self.unwritten else (self.index,)
        return own if self.counted is None else self.counted

    @property
    def recounted(self) -> list[int]:
        """The same, but for the one that a copy of the new content is."""
        left = [*self.counts]
        if self.index in left:
            left.remove(self.index)
        return left


def roles_of(items: Sequence[Input | Output]) -> tuple[Role, ...]:
    """The role of each."""
    return tuple(item.role for item in items)
