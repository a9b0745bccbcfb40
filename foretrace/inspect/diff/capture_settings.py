"""The settings and inputs in which two captures differ, as reasons of differences."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import sympy

from foretrace.inspect.diff.difference import Reason
from foretrace.inspect.diff.sides import Side, aspects, listed, paired_inputs
from foretrace.ir.program.call_requirements import CallRequirements
from foretrace.ir.program.interface import Input
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import ModuleCall
from foretrace.ir.program.recording import Recording
from foretrace.ir.symbols.shape_env import free_symbols

PLAIN = frozenset({bool, int, float, str, type(None), tuple})
"""Types of constants that are compared"""


class Settings:
    """The settings and inputs in which two captures differ, by the aspects that they affect."""

    def __init__(self, left: Side, right: Side) -> None:
        self.left, self.right = left, right
        self.moved = left.target.device.type != right.target.device.type
        self.other_program = left.program != right.program
        self.inputs, _ = paired_inputs(left.recorded.inputs, right.recorded.inputs)
        self.by_aspect: dict[str, list[Reason]] = {}
        self.modes = _differing_modes(left.recorded, right.recorded)
        """by path, modules whose training modes differ, with the left's mode"""
        self._of_input: dict[int, Reason] = {}
        self._of_values: dict[tuple[str, str], Reason] = {}
        self._inputs()
        self._open = [
            item
            for item in (*left.recorded.inputs, *right.recorded.inputs)
            if item.value.type.symbols and id(item) in self._of_input
        ]
        for aspect, reason in self._differing():
            self.by_aspect.setdefault(aspect, []).append(reason)

    def of_input(self, item: Input) -> Reason | None:
        """The reason of an input, of either side."""
        return self._of_input.get(id(item))

    def of_values(self, pairs: Iterable[tuple[Any, Any]]) -> Reason | None:
        """The reason for which settings differ in the same two constants."""
        known = (self._of_values.get((repr(a), repr(b))) for a, b in pairs)
        return next((reason for reason in known if reason is not None), None)

    def of_symbols(self, ops: Sequence[Op]) -> Reason | None:
        """The reason of an input whose symbolic size is in the ops."""
        shapes = [out.type.shape for op in ops for out in op.outs]
        return self.of_open([shapes, *((op.args, op.kwargs) for op in ops)])

    def of_open(self, tree: Any) -> Reason | None:
        """The reason of an input whose symbolic size is in a structure."""
        named = free_symbols(tree)
        return next(
            (self._of_input[id(i)] for i in self._open if i.value.type.symbols & named), None
        )

    def pick(self, *aspects: str) -> Reason | None:
        """The first reason that affects one of the aspects, or the only one."""
        for aspect in aspects:
            for reason in self.by_aspect.get(aspect, ()):
                return reason
        return self.only_one

    @property
    def every(self) -> list[Reason]:
        """All reasons, without duplicates."""
        return list(dict.fromkeys(r for reasons in self.by_aspect.values() for r in reasons))

    @property
    def only_one(self) -> Reason | None:
        """The reason, if only one thing differs and the programs are equal."""
        return self.every[0] if len(self.every) == 1 and not self.other_program else None

    @property
    def together(self) -> Reason | None:
        """All reasons as one, where none is known to be the cause."""
        if not self.every or self.other_program:
            return None
        texts = "; ".join(reason.text for reason in self.every)
        these = "this alone was" if len(self.every) == 1 else "these were"
        return Reason("fallback", f"nothing nearer is known; {these} given differently: {texts}")

    def roots(self, *known: Reason | None) -> Reason | None:
        """One reason of several: itself if it is the only one, else all their texts."""
        found = list(dict.fromkeys(each for each in known if each is not None))
        if len(found) < 2:  # noqa: PLR2004 - one is itself
            return found[0] if found else None
        return Reason("several", "; ".join(each.text for each in found))

    @property
    def target(self) -> Reason | None:
        """The reason that the targets differ, if they do."""
        return next(iter(self.by_aspect.get("target", ())), None)

    # ---- what differs ---------------------------------------------------------------------------

    def _inputs(self) -> None:
        groups: dict[tuple[Any, ...], list[tuple[Input, Input]]] = {}
        for a, b in self.inputs:
            found = aspects(a.value.type, b.value.type, moved=self.moved)
            for what in found[:1]:
                groups.setdefault(what, []).append((a, b))
        for (aspect, left, right), items in groups.items():
            text = _input_text(aspect, left, right, [a.role.name for a, _ in items])
            reason = Reason("input", text)
            self.by_aspect.setdefault(aspect, []).append(reason)
            for pair in items:
                for item in pair:
                    self._of_input[id(item)] = reason
            if aspect == "shape" and len(left) == len(right):
                for both in zip(left, right, strict=True):
                    self._of_values.setdefault((repr(both[0]), repr(both[1])), reason)

    def _differing(self) -> Iterator[tuple[str, Reason]]:
        left, right = self.left, self.right
        if left.target != right.target:
            both = (left.target.name, right.target.name)
            if both[0] == both[1]:
                both = (str(left.target), str(right.target))
            text = "captured for {} on the left, for {} on the right".format(*both)
            yield "target", Reason("target", text)
        if self.modes:
            yield "mode", Reason("mode", self._mode_text())
        mine, theirs = left.recorded.requires, right.recorded.requires
        facts = (
            ("autocast", "dtype", _devices(mine), _devices(theirs)),
            ("the grad mode", "requires_grad", str(mine.grad_mode), str(theirs.grad_mode)),
            ("the default dtype", "dtype", str(mine.default_dtype), str(theirs.default_dtype)),
        )
        for name, aspect, a, b in facts:
            if a != b:
                yield aspect, Reason("given", f"{name} is {a} on the left, {b} on the right")
        for (left_value, right_value), names in _differing_constants(mine, theirs).items():
            verb = "is" if len(names) == 1 else "are"
            text = f"{listed(names)} {verb} {left_value} on the left, {right_value} on the right"
            reason = self._of_values[left_value, right_value] = Reason("held", text)
            yield "held", reason
        yield from self._losses()

    def _mode_text(self) -> str:
        names = ("training", "eval") if next(iter(self.modes.values())) else ("eval", "training")
        root = next(iter(_training(self.left.recorded.ops)))
        whole = root in self.modes  # each call may create the other modules
        which = "" if whole else f"{listed([path or 'the program' for path in self.modes])} "
        return f"{which}in {names[0]} mode on the left, in {names[1]} mode on the right"

    def _losses(self) -> Iterator[tuple[str, Reason]]:
        left, right = self.left, self.right
        if left.differentiates and right.differentiates and left.cut.loss != right.cut.loss:
            a, b = left.cut.loss, right.cut.loss
            yield "loss", Reason("loss", f"loss={a} on the left, loss={b} on the right")


def _devices(requires: CallRequirements) -> str:
    return f"on for {', '.join(sorted(requires.autocast))}" if requires.autocast else "off"


def _differing_constants(
    left: CallRequirements, right: CallRequirements
) -> dict[tuple[str, str], list[str]]:
    """Constants that both programs read, by their two values: the names that have these."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, a, b in _in_both(left, right):
        if all(type(item) in PLAIN for item in (a, b)) and repr(a) != repr(b):
            found.setdefault((repr(a), repr(b)), []).append(name)
    return found


def _in_both(left: CallRequirements, right: CallRequirements) -> Iterator[tuple[str, Any, Any]]:
    for name in left.constants.keys() & right.constants.keys():
        yield name, left.constants[name], right.constants[name]
    mine, theirs = _unique_reads(left), _unique_reads(right)
    for name in mine.keys() & theirs.keys():
        yield name, mine[name], theirs[name]


def _unique_reads(requires: CallRequirements) -> dict[str, object]:
    """The values that a program reads outside, by name; without names that several places have."""
    places = requires.python.locations
    count = Counter(each.name for each in places)
    return {each.name: each.before for each in places if count[each.name] == 1}


def _differing_modes(left: Recording, right: Recording) -> dict[str, bool]:
    """By path, the modules whose training modes differ, with the mode on the left."""
    mine, theirs = _training(left.ops), _training(right.ops)
    return {path: now for path, now in mine.items() if now != theirs.get(path, now)}


def _training(ops: Iterable[Op]) -> dict[str, bool]:
    found: dict[str, bool] = {}
    for op in ops:
        if isinstance(op.target, ModuleCall):
            if op.target.training is not None:
                found.setdefault(op.target.path, op.target.training)
            found |= _training(op.region or ())
    return found


def sizes(shape: Sequence[Any]) -> str:
    """`[4, s0]`."""
    return f"[{', '.join(map(str, shape))}]"


def _input_text(aspect: str, left: Any, right: Any, names: Sequence[str]) -> str:
    name = listed(names)
    if aspect == "requires_grad":
        verb = "requires" if len(names) == 1 else "require"
        return f"{name} {verb} grad on the {'left' if left else 'right'} only"
    if aspect in ("shape", "strides"):
        if opened := _opened(left, right, "right") or _opened(right, left, "left"):
            return f"{name}: {opened}"
        has = "has" if len(names) == 1 else "have"
        noun = "sizes" if aspect == "shape" else "strides"
        return f"{name} {has} {noun} {sizes(left)} on the left, {sizes(right)} on the right"
    verb = "is" if len(names) == 1 else "are"
    return f"{name} {verb} {left} on the left, {right} on the right"


def _opened(numbers: Any, symbols: Any, side: str) -> str:
    """The sizes that are symbolic on one side only, in words."""
    if len(numbers) != len(symbols):
        return ""
    found = [
        f"size {n} is {s}"
        for n, s in zip(numbers, symbols, strict=True)
        if isinstance(s, sympy.Expr) and isinstance(n, int)
    ]
    return f"{', '.join(found)}, open on the {side} only" if found else ""
