"""Python arithmetic on floats that data decides: each step is an op of the record.

`v = x.max().item()` is a symbol, and so is `v * 2`: the op between them calls Python's own `*`
when a graph runs. Nothing is simplified, so the floats are eager's to the last bit. What Python
asks of such a float is a question about tensors, as any yes or no is (decision 027).
"""

import math
import operator
from collections.abc import Callable, Mapping, Set as AbstractSet
from contextlib import ExitStack
from types import MappingProxyType, ModuleType
from typing import Any, Final

import sympy
import torch

from foretrace import torch_api
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import Choice
from foretrace.ir.source.call_site import users_frame
from foretrace.ir.source.operand_stack import called_at
from foretrace.ir.symbols.builtin_call_sites import NameOfModule
from foretrace.ir.symbols.builtin_casts import bound
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.symbols.sym_float import EXACT, Float
from foretrace.ir.symbols.sym_int import as_int
from foretrace.ir.values.value import Value
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.abstract_tensors.supported_inputs import plain_class
from foretrace.tracer.concrete.unknown_values import depends_on_inputs
from foretrace.tracer.data_dependence.value_guards import ValueGuards
from foretrace.tracer.recorder.recorder import Recorder

aten = torch.ops.aten
STEP: Final = Choice("number", "whole", "Python computes it of numbers that data decides")
COMPARED: Mapping[Callable[..., Any], Any] = MappingProxyType({
    operator.eq: aten.eq.Tensor, operator.ne: aten.ne.Tensor, operator.lt: aten.lt.Tensor,
    operator.le: aten.le.Tensor, operator.gt: aten.gt.Tensor, operator.ge: aten.ge.Tensor,
    math.isnan: aten.isnan.default, math.isinf: aten.isinf.default,
    math.isfinite: aten.isfinite.default,
})  # fmt: skip
"""The operator for each question about numbers"""
LEAST: Mapping[Callable[..., Any], Any] = MappingProxyType(
    {
        min: torch.sym_min,
        max: torch.sym_max,
    }
)
"""For two floats, they compute what Python's own do"""
LARGEST: Final = 1 << 53
"""Up to here each integer is a float; Python compares larger ones with floats exactly"""
IS_NONZERO: Final = aten.is_nonzero.default


class Steps:
    """Records the steps of one run, while it is open.

    Args:
        recorder: of the run.
        questions: answers what the program asks of numbers.
        as_they_are: functions, by their full names, in whose places no others stand.
    """

    def __init__(
        self,
        recorder: Recorder,
        questions: ValueGuards,
        as_they_are: AbstractSet[str] = frozenset(),
    ) -> None:
        self.recorder, self.questions = recorder, questions
        self.as_they_are = as_they_are
        self.symbols = recorder.types.symbols
        self.fixed = set[Any]()
        """numbers that the program needs as they are"""
        self._casts: Callable[[], list[NameOfModule]] = list
        """the globals in which `int` and `float` are replaced in the run, or may not be"""
        self._not_ours: dict[tuple[int, str], str] = {}
        """why they are not replaced, by the id of such globals and the name"""
        self._open: ExitStack | None = None
        self._followed: torch_api.FollowedFloats | None = None

    def following(self, casts: Callable[[], list[NameOfModule]]) -> "Steps":
        """The steps of a program that may have `int` and `float` in these globals."""
        self._casts = casts
        return self

    def __enter__(self) -> None:
        self._open, self.symbols.floats.steps = ExitStack(), self
        self.recorder.unwatched.rests_at(Steps.step.__code__)
        self._open.enter_context(torch_api.batches_counted())
        if self.questions.constants.guarded:  # `math.exp(x.item())` looks `exp` up before
            self._followed = torch_api.FollowedFloats(
                self.step, self._follows, self._called, self._of_one_element,
                as_they_are=self.as_they_are,
            )  # fmt: skip
            self._open.enter_context(self._followed)
        names = self._casts()
        if self._followed is None:  # sizes have these two where no data has an answer
            names = [each for each in names if each.name in {"min", "max"}]
        self._not_ours = {(id(e.space), e.name): e.otherwise for e in names if e.otherwise}
        ours = [(each.space, each.name) for each in names if not each.otherwise]
        self._open.enter_context(bound(
            ours, int=self._int, float=self._float,
            min=self._least, max=self._least, type=_type_of,
        ))  # fmt: skip

    def __exit__(self, *error: object) -> None:
        self.symbols.floats.ended()
        if self._open is not None:
            self._open.close()
        self._open, self._casts = None, list  # these know all that was kept of Python's state
        self._not_ours = {}

    def in_modules(self) -> dict[ModuleType, set[str]]:
        """By module, the functions in whose places others have stood."""
        found: dict[ModuleType, set[str]] = {math: set(), torch: set(torch_api.OPTIONAL)}
        for module, name in self._followed.names if self._followed is not None else ():
            found[module].add(name)
        return found

    def begin(self) -> None:
        """From the first number of data on, Python's functions of numbers are followed."""
        if self._open is not None and self._followed is not None:
            self._followed.follow_all()

    def _float(self, argument: Any) -> Any:
        number = self._number_of(argument)
        whole = issubclass(type(number), torch.SymInt) and self._follows(number)
        return torch.sym_float(number) if whole else number

    def _int(self, argument: Any) -> Any:
        number = self._number_of(argument)
        if issubclass(type(number), torch.SymFloat) and self._follows(number):
            return as_int(math.trunc(number))
        return number

    def _least(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`min` or `max` of two numbers: open if one is a size, or a float that data decides."""
        match args:
            case (float(), float()) if not kwargs and any(map(self._follows, args)):
                return self.step(LEAST[function], *args)  # files of torch.export have this one
            case (_, _) if not kwargs and _open_among(args):
                return as_int(LEAST[function](*args))
        return function(*args, **kwargs)

    def _number_of(self, argument: Any) -> Any:
        """The number that a tensor holds; anything else as it is."""
        reached = isinstance(argument, torch.Tensor) and plain_class(type(argument))
        known = isinstance(argument, Abstract) or reached
        if not known or not torch_api.is_active(self.recorder):
            return argument
        return (
            argument
            if argument.dtype.is_complex or argument.dtype is torch.bool
            else argument.item()
        )

    def _of_one_element(self, tensor: torch.Tensor) -> Any:
        """The float of a tensor with one element; a tensor with more as it is."""
        return self._float(tensor) if all(_is_one(size) for size in tensor.shape) else tensor

    def _called(
        self, operator: Any, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """The result of an operator whose torch function would ask for the number.

        The call comes to the recorder as it is; autocast and transforms of functions want it first.
        """
        if self.recorder.casts.devices or torch_api.functorch_active():
            return function(*args, **kwargs)
        with torch_api.no_dispatch_modes():
            return self.recorder.again(operator, args, kwargs)

    def _follows(self, number: Any) -> bool:
        """Whether data decides a number, and the program computes with it, not a meta kernel."""
        if not issubclass(type(number), (torch.SymInt, torch.SymFloat)):
            return False
        if not torch_api.is_active(self.recorder):
            return False
        symbols = free_symbols(torch_api.expression(number))
        return any(map(torch_api.is_from_data, symbols))

    def step(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The result of the function: a new number, or the answer to a question."""
        with self.recorder.unwatched:
            return self._step(function, args, kwargs)

    def _step(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if kwargs:
            named = {name: self._fixed(number) for name, number in kwargs.items()}
            return function(*map(self._fixed, args), **named)
        if function in COMPARED and max(map(_size, args)) <= LARGEST:
            return self._asked(function, args)
        values = tuple(map(self._value, args))
        found = function(*(self.symbols.concrete(value) for value in values))
        if type(found) not in (int, float) or not self._stays(function, args):
            return function(*map(self._fixed, args))
        return self._recorded(function, values, found)

    def _recorded(self, function: Callable[..., Any], values: tuple[Any, ...], found: Any) -> Any:
        recorder = self.recorder
        if None in recorder.scope.bodies:  # of calls that share it, each has numbers of its own
            raise depends_on_inputs(function)
        symbol = self.symbols.number_from_data(found)
        origin = recorder.origin()
        recorder.append(Op(function, values, {}, symbol, (), origin=origin, choice=STEP))
        return self.symbols.symbolic(symbol)

    def _stays(self, function: Callable[..., Any], args: tuple[Any, ...]) -> bool:
        """Whether it returns the same kind of number for other arguments: a root may be complex."""
        if function is not operator.pow:
            return True
        base, power = args
        if type(base) in (int, float):
            return base > 0 or (base == 0 and bool(power >= 0))
        if type(power) in (int, float) and float(power).is_integer():
            return True
        return bool(base >= 0)

    def _value(self, number: Any) -> Any:
        """A number as an argument of an op."""
        kind = type(number)
        if kind in EXACT:
            return number
        if kind is Float:
            return torch_api.expression(number)
        symbolic = issubclass(kind, (torch.SymInt, torch.SymFloat, torch.SymBool))
        return self.symbols.scalar(number) if symbolic else number

    # ---- what is asked --------------------------------------------------------------------------

    def number(self, symbol: Any) -> float:
        """The number itself, which becomes a guard."""
        by = "" if symbol in self.fixed else self._asked_by()
        self.fixed.add(symbol)
        with self.recorder.unwatched:
            found, computed = self.symbols.floats.known[symbol], self.recorder.computed
            tensor, said = self._tensor(symbol), f"{by}== {found!r}"
            if math.isnan(found):
                self._answer(computed(aten.isnan.default, tensor), "isnan", sides=False)
            else:
                self._answer(computed(aten.eq.Scalar, tensor, found), said, sides=False)
            if found == 0:
                self._answer(computed(aten.signbit.default, tensor), "signbit", sides=False)
        return found

    def _asked_by(self) -> str:
        """The function of Python's own that asks for a number, and why it does; "" if none does."""
        at = users_frame() if self._not_ours else None
        name = "" if at is None else called_at(at.f_code, at.f_lasti)
        why = self._not_ours.get((id(at.f_globals), name)) if at is not None else None
        return f"Python's own {name} ({why}) " if why else ""

    def _fixed(self, number: Any) -> Any:
        kind = type(number)
        if issubclass(kind, torch.SymFloat):
            return float(number)
        return int(number) if issubclass(kind, torch.SymInt) else number

    def _asked(self, function: Callable[..., Any], args: tuple[Any, ...]) -> bool:
        values = tuple(map(self._value, args))
        numbers = [repr(arg) for arg in args if type(arg) in (int, float, bool)]
        said = " ".join([function.__name__, *numbers])
        asked = self._compared(function, values)
        symbols = sum(isinstance(value, sympy.Symbol) for value in values)
        if symbols + len(numbers) == len(values):
            answer = bool(function(*map(self.symbols.concrete, values)))
            question: tuple[Any, ...] = IS_NONZERO, (asked,), {}
            if self.questions.of_numbers(self.recorder, question, values, answer, said):
                return answer
        return self._answer(asked, said, sides=True)

    def _compared(self, function: Callable[..., Any], values: tuple[Any, ...]) -> Value:
        """The answer as a tensor of the graph."""
        first, *others = values
        if others and (type(others[0]) is int or (type(others[0]) is float and not _whole(first))):
            of_scalar = COMPARED[function].overloadpacket.Scalar
            return self.recorder.computed(of_scalar, self._tensor(first), others[0])
        # torch compares a tensor of integers with a float scalar as float32
        return self.recorder.computed(COMPARED[function], *map(self._tensor, values))

    def _answer(self, asked: Value, said: str, *, sides: bool) -> bool:
        answer: bool = self.questions.answer(
            self.recorder, IS_NONZERO, (asked,), {}, sides=sides, said=said
        )
        return answer

    def _tensor(self, number: Any) -> Value:
        dtype = torch.int64 if _whole(number) else torch.float64
        kind = {"dtype": dtype, "device": torch.device("cpu")}
        return self.recorder.computed(aten.scalar_tensor.default, number, **kind)


def _type_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`type`: of an open number, that of what it stands for."""
    kind = function(*args, **kwargs)
    stands_for = ((torch.SymBool, bool), (torch.SymInt, int), (torch.SymFloat, float))
    found = (own for symbolic, own in stands_for if issubclass(kind, symbolic))
    return next(found, kind) if len(args) == 1 else kind


def _whole(number: Any) -> bool:
    return type(number) in (int, bool) or getattr(number, "is_integer", None) is True


def _size(number: Any) -> int:
    return abs(number) if type(number) is int else 0


def _is_one(size: Any) -> bool:
    """Whether a size is 1, without a guard on one that is open."""
    return type(size) is int and size == 1


def _open_among(sizes: tuple[Any, Any]) -> bool:
    """Whether two numbers are sizes, and one of them is open."""
    are_open = [issubclass(type(each), torch.SymInt) for each in sizes]
    pairs = zip(sizes, are_open, strict=True)
    return any(are_open) and all(is_open or type(each) is int for each, is_open in pairs)
