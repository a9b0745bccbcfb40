"""The result of dispatching a call, found once for all calls with operands of the same types."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias

from foretrace.ir.program.op import SharedBody
from foretrace.ir.program.origin import Choice
from foretrace.ir.values.value import Tree, Value, values_in


@dataclass(frozen=True, slots=True)
class ReturnedOperand:
    """A result that is the operand at this position."""

    operand: int


class Share(IntEnum):
    """How much a result shares with the operand whose memory it has; each member shares less."""

    VIEW = 0
    """autograd follows a write to it back to the operand"""
    VERSION = 1
    """torch's version counter, as `detach()` has"""
    MEMORY = 2
    """nothing: neither schema nor autograd says that it shares memory"""


View: TypeAlias = tuple[int, int, Share]
"""(position of a result, that of the operand whose memory it shares, what it has of it)"""


@dataclass(slots=True, eq=False)
class Outcome:
    """Types of the results, the body, and which results are views of operands.

    `result` has a TensorType for each new value; `views` names those that share memory.
    `inline` is set where the body depends on more than the operands' types (it writes to an operand
    or reads a constant), so it is recorded again for each call.
    """

    result: Tree
    definition: SharedBody | None = None
    choice: Choice | None = None
    views: tuple[View, ...] = ()
    inline: Callable[..., Any] | None = None
    lasting: bool = True
    """whether it holds in other captures too"""
    factory: bool = False
    """takes no tensors; torch's bindings may mark its results as leaves afterwards"""
    form: "Outcome | None" = None
    """of an op that writes: the outcome of its functional form, once that was called"""

    def again(self) -> "Outcome":
        """A copy for a call with other constants."""
        return Outcome(
            self.result, self.definition, self.choice, self.views, self.inline, self.lasting,
            self.factory, self.form and self.form.again(),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Functional:
    """The functional form of an op that writes to operands.

    `call` takes the same arguments, without those named in `dropped`. Its results are the new
    contents of `out=` arguments first, then the op's own results, then the new contents of what
    else it writes.
    """

    call: Any
    dropped: frozenset[str]
    defaults: tuple[Any, ...] = ()
    """the default values of the op's positional arguments"""
    order: tuple[int, ...] = ()
    """the position in the op's call of each positional argument, if the order differs"""
    options: frozenset[str] = frozenset()
    """arguments whose default is the written tensor's: dtype and device of a factory,
    the dtype in which a sum is computed"""

    wrapped: tuple[Any, tuple[str, ...]] | None = None
    """of `auto_functionalized`: the op that it takes, and the names of that op's arguments"""

    def arguments(self, args: Tree, kwargs: dict[str, Tree]) -> tuple[Tree, dict[str, Tree]]:
        """The op's arguments as `call` takes them."""
        if self.wrapped is not None:
            op, names = self.wrapped
            return (op,), dict(zip(names, args, strict=False)) | kwargs
        if not self.dropped and not self.order:
            return (*args, *self.defaults[len(args) :]), kwargs
        kept = {name: arg for name, arg in kwargs.items() if name not in self.dropped}
        written = values_in([kwargs.get(name) for name in self.dropped])
        for name in self.options & {"dtype", "device"} if written else ():
            if kept.get(name) is None:
                kept[name] = getattr(written[0].type, name)
        args = (*args, *self.defaults[len(args) :])
        return tuple(args[i] for i in self.order) or args, kept


@dataclass(frozen=True, slots=True)
class Returns:
    """What an operator returns."""

    tensors: bool = False
    """or nothing; else it returns numbers, which depend on data"""
    something: bool = False
    written: bool = False
    """the arguments that it wrote to, and nothing else"""
    several: bool = False
    """a tuple or a list"""


@dataclass(frozen=True, slots=True)
class Schema:
    """Facts about an operator that do not depend on its operands' types."""

    arguments: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    """names of the arguments it writes to; those of `out=` first"""
    writes_lists: bool = False
    """writes to lists of tensors, one after the other, as `_foreach_add_` does"""
    writes_if: str | None = None
    """the boolean argument without which it writes nothing"""
    viewed: tuple[str, ...] = ()
    """the argument whose memory every result shares"""
    share: Share = Share.VIEW
    """what such a result has of that argument"""
    random: bool = False
    """draws from the generator, so it runs exactly once and in order"""
    draws_over: bool = False
    """fills its first argument with what it draws, in the order of memory"""
    reshapes_in_place: bool = False
    """changes the sizes of its argument, such as unsqueeze_"""
    returns: Returns = Returns()
    outs: tuple[str, ...] = ()
    """names of the arguments that are only written, such as `out`"""
    keeps_shape: bool = False
    """an `out` of another shape is not resized if it has as many elements"""
    functional: Functional | None = None

    def bind(self, args: Tree, kwargs: dict[str, Tree]) -> dict[str, Tree]:
        """The arguments of a call by name."""
        return dict(zip(self.arguments, args, strict=False)) | kwargs

    def written_now(self, args: Tree, kwargs: dict[str, Tree]) -> list[Value]:
        """The operands that this call writes to."""
        named = self.bind(args, kwargs)
        if self.writes_if is not None and not named.get(self.writes_if):
            return []
        if len(self.writes) == 1 and type(found := named.get(self.writes[0])) is Value:
            return [found]
        return [value for name in self.writes for value in values_in(named.get(name))]

    def view_positions(self, args: Tree, kwargs: dict[str, Tree], count: int) -> tuple[View, ...]:
        """The results that share memory with an operand."""
        if not self.viewed:
            return ()
        named, operands = self.bind(args, kwargs), values_in((args, kwargs))
        bases = [value for name in self.viewed for value in values_in(named[name])[:1]]
        return tuple(
            (position, operands.index(base), self.share)
            for position in range(count)
            for base in bases
        )
