"""The reasons of differences, from the trees of two cuts."""

from collections.abc import Iterable, Sequence

import torch

from foretrace.autograd.derivatives.derive import Derivatives
from foretrace.autograd.derivatives.target_semantics import COMPOSITE, TargetSemantics
from foretrace.autograd.eager_history.emit_history import emit_history
from foretrace.inspect.diff.capture_settings import Settings
from foretrace.inspect.diff.cut_coverage import Node
from foretrace.inspect.diff.difference import Reason, lines_of, op_name, place_of
from foretrace.inspect.diff.sides import Side, aspect_text, aspects
from foretrace.inspect.diff.tree_alignment import (
    Argument,
    Pair,
    argument_text,
    arguments_that_differ,
    constants,
    leaf_pairs,
)
from foretrace.inspect.diff.value_causes import Causes
from foretrace.inspect.dispatcher.registrations import registered
from foretrace.inspect.explain.pair_links import AGAIN
from foretrace.inspect.explain.tree_path import (
    TABLE,
    choice_notes,
    has_composite_kernel,
    of_history,
)
from foretrace.ir.program.op import Op, target_name
from foretrace.ir.values.value import Value
from foretrace.lowering.cuts.cut import Level
from foretrace.lowering.cuts.dead_code import live
from foretrace.lowering.cuts.decompose import decompose
from foretrace.lowering.partition.partition import SAVED_COPY, partition
from foretrace.lowering.partition.policies import choose
from foretrace.lowering.pipelines.joint import differentiate
from foretrace.operators.inference.infer import Inference
from foretrace.operators.targets.sdpa import WHAT as ATTENTION_KERNEL, choose_attention

LEVEL, KERNEL = place_of(Level.whole), place_of(TargetSemantics.body_kernel)
ABOUT: dict[str, str] = {
    "export": "keeps ops as they are written",
    "aten": "is opened down to the leaf ops",
    "joint": "is opened down to where derivatives are",
    "forward": "is a half of the joint cut, opened down to where derivatives are",
    "backward": "is a half of the joint cut, opened down to where derivatives are",
}
ASPECTS: dict[type, str] = {torch.dtype: "dtype", torch.device: "target"}
"""The aspect on which a constant of a type depends"""
FREE = "it is an input or a parameter, so it is there anyway"
NAMED = 3
"""The most ops that a reason names; the others are counted."""


class Reasons:
    """Finds the one reason of each difference between two cuts."""

    def __init__(self, left: Side, right: Side, settings: Settings, causes: Causes) -> None:
        self.left, self.right, self.settings, self.causes = left, right, settings, causes

    # ---- the cuts themselves --------------------------------------------------------------------

    def no_backward(self) -> Reason | None:
        """The reason if one cut has gradients and the other has none."""
        a, b = self.left, self.right
        if a.differentiates == b.differentiates:
            return None
        without, with_ = (b, a) if a.differentiates else (a, b)
        place = place_of(differentiate.change if with_.kind == "joint" else choose)
        return Reason(
            "cut",
            f"the {without.kind} cut is the forward alone; the {with_.kind} cut has the gradients",
            place,
        )

    def halves(self) -> Reason | None:
        """The reason if the cuts are different halves, or one is a half."""
        kinds = {self.left.kind, self.right.kind}
        if len(kinds) == 1 or not kinds & {"forward", "backward"}:
            return None
        text = f"the left one is the {self.left.kind} cut, the right one the {self.right.kind} cut"
        return Reason("cut", text, place_of(partition))

    def mixed(self, pair: Pair) -> Reason:
        """The reason of an op that is whole on one side and opened on the other."""
        left_whole = pair.left.whole is not None
        whole, opened = (pair.left, pair.right) if left_whole else (pair.right, pair.left)
        a, b = (self.left, self.right) if left_whole else (self.right, self.left)
        if whole.op.leaf and whole.op is opened.op:
            return self._history(whole, opened)
        if whole.op.leaf:
            return self._kernel(whole.op, opened.op, a, b)
        return self._level(whole, opened, a, b)

    def _history(self, whole: Node, opened: Node) -> Reason:
        """The reason of a leaf that a forward cut writes otherwise for autograd."""
        ops = [*opened.history, *whole.history, *opened.forward_ops()]
        found = next((r for r in map(self.of_choice, ops) if r is not None), None)
        text = "a forward cut spells out what autograd follows; the others need not"
        return found or Reason("history", text, place_of(emit_history))

    @staticmethod
    def table(left: Iterable[Op], right: Iterable[Op]) -> Reason | None:
        """The reason if a cut's decomposition table has opened an op."""
        sides = (("left", left), ("right", right))
        opening = [
            name for name, ops in sides if any(op.piece_of and not of_history(op) for op in ops)
        ]
        if not opening:
            return None
        what = f"that of the {opening[0]} cut opens it"
        what = what if len(opening) == 1 else "both open it, each in its way"
        return Reason("table", f"of the decomposition tables given, {what}", place_of(decompose))

    def _kernel(self, whole: Op, opened: Op, a: Side, b: Side) -> Reason:
        """The reason of a leaf on one target that another target decomposes."""
        name = target_name(whole.target)
        chosen = self.choices(*((whole, opened) if a is self.left else (opened, whole)))
        if chosen is not None:
            return chosen
        if whole.choice is not None and a.target != b.target and has_composite_kernel(whole):
            text = f"{name} has a kernel of its own on {a.target.name}, none on {b.target.name}"
            return Reason("choice", text, KERNEL)
        found = self.causes.among((*whole.operands, *opened.operands)) or self.settings.pick(
            "target"
        )
        return found or self.unknown(f"{name} is opened on one side")

    def _level(self, whole: Node, opened: Node, a: Side, b: Side) -> Reason:
        name, side = target_name(whole.op.target), "left" if a is self.left else "right"
        written = a.kind == "export" and Level(written=True).whole(whole.op)
        if not written:
            return Reason("keep", f"keep= names {name} in the {side} cut", LEVEL)
        if b.kind != "export":
            text = f"the export cut {ABOUT['export']}; the {b.kind} cut {ABOUT[b.kind]}"
            return Reason("level", text, LEVEL)
        if opened.op.opened and opened.op.choice is not None:
            return Reason("choice", choice_notes(opened.op.choice)[0], LEVEL)
        other = "right" if a is self.left else "left"
        return Reason("keep", f"open= names {name} in the {other} cut", LEVEL)

    # ---- one op, two bodies ---------------------------------------------------------------------

    def choices(self, left: Op, right: Op) -> Reason | None:
        """The reason if two choices differ, with its root."""
        a, b = left.choice, right.choice
        if a is None or b is None or a.what != b.what or a.value == b.value:
            return None
        if constants(left) != constants(right):
            root: Reason | None = self.argument(left, right)
        else:
            types = self.causes.of_types(left, right)
            root = self.settings.roots(types, self.settings.target) or self.settings.only_one
        place = place_of(choose_attention) if a.what == ATTENTION_KERNEL else KERNEL
        return Reason(
            "choice", f"{a.what} is {a.value} on the left, {b.value} on the right", place, root
        )

    def body(self, pair: Pair, nodes: Iterable[Node]) -> Reason:
        """The reason why two bodies of one op differ; `nodes`: those that only one has."""
        a, b = pair.left.op, pair.right.op
        if chosen := self.choices(a, b):
            return chosen
        if constants(a) != constants(b):
            return self.argument(a, b)
        found = self._way(pair) or self.causes.of_types(a, b)
        found = found or self.causes.among(v for node in nodes for v in node.op.operands)
        found = found or self.settings.target
        return found or self.unknown(f"the bodies of {target_name(a.target)} differ")

    def _way(self, pair: Pair) -> Reason | None:
        """The reason if a composite kernel calls other operators on the other target.

        That depends on the types of its operands, on constants, which are equal, and on the target.
        """
        a, b = pair.left.op, pair.right.op
        target = self.settings.target
        if target is None or not has_composite_kernel(a):
            return None
        if not self.causes.equal_types(a, b):
            target = self.settings.roots(self.causes.of_types(a, b), target)
        called = [_called(each.children) or "nothing" for each in (pair.left, pair.right)]
        if called[0] == called[1]:  # how often, or of what
            return None
        sides = zip(called, (self.left, self.right), strict=True)
        calls = [f"{names} on {side.target.name}" for names, side in sides]
        text = f"{target_name(a.target)}'s composite kernel calls {calls[0]}; {calls[1]}"
        return Reason("kernel", text, registered(a.called[0].name())[COMPOSITE].place, target)

    def _device_rule(self, a: Op, b: Op) -> Reason | None:
        """The reason of a leaf with another result type on the other target, for equal operands."""
        target = self.settings.target
        if target is None or constants(a) != constants(b) or not self.causes.equal_types(a, b):
            return None
        each = zip(a.outs, b.outs, strict=False)
        differing = [aspects(x.type, y.type, moved=self.settings.moved)[:1] for x, y in each]
        (what, left, right), *_ = [first for found in differing for first in found]
        here, there = self.left.target.name, self.right.target.name
        gives = f"{left} on {here}, {right} on {there}"
        if what in ("shape", "strides"):
            gives = f"{aspect_text((what, left, right))} on {there} than on {here}"
        text = f"{target_name(a.target)} gives {gives}, of operands of equal types"
        return Reason("kernel", text, place_of(Inference.infer), target)

    def written(self, left: Sequence[Node], right: Sequence[Node]) -> Reason:
        """The reason of ops that Python called on one side only."""
        nodes = (*left, *right)
        mode = self._mode_around(node.op for node in nodes)
        if not self.settings.other_program:
            found = self.causes.among(v for node in nodes for v in node.op.operands)
            found = found or self.settings.of_symbols([o for n in nodes for o in n.forward_ops()])
            found = self.settings.only_one or self.settings.roots(mode, found)
            if found := found or self.settings.together:
                return found
        elif mode is not None:
            return mode
        mine, theirs = _called(left), _called(right)
        if mine and theirs:
            what = f"the left program calls {mine}, the right one {theirs}"
        else:
            what = f"only the {'left' if mine else 'right'} program calls {mine or theirs}"
        return Reason("program", what, lines_of([node.op for node in nodes]))

    def _mode_around(self, ops: Iterable[Op]) -> Reason | None:
        """The reason of modules' modes, if that of a module around one of the ops differs."""
        modes = self.settings.by_aspect.get("mode")
        around = (op.origin.module for op in ops)
        return (
            modes[0] if modes and any(m and m.path in self.settings.modes for m in around) else None
        )

    # ---- one op, other arguments or types -------------------------------------------------------

    def argument(self, a: Op, b: Op, differ: Sequence[Argument] = ()) -> Reason:
        """The reason of an op with other constants; `differ`: these constants, else all."""
        differ = differ or arguments_that_differ(a, b)
        kinds = {type(leaf) for _, pair in differ for leaf in pair}
        sure = [aspect for kind, aspect in ASPECTS.items() if kind in kinds]
        known = [reason for aspect in sure for reason in self.settings.by_aspect.get(aspect, ())]
        pairs = [both for _, pair in differ for both in leaf_pairs(*pair)]
        found = known[0] if known else self.settings.of_values(pairs)
        found = found or self.settings.of_open(pairs) or self._mode_around((a, b))
        found = found or self.causes.of_types(a, b)
        if found is None and not self.settings.other_program:
            found = self.settings.of_symbols([a, b]) or self.settings.pick("shape")
            found = found or self.settings.together
        if found is not None:
            return found
        text = "; ".join(argument_text(each) for each in differ) or "its arguments differ"
        return Reason("argument", f"{target_name(a.target)}: {text}", lines_of([a, b]))

    def type(self, a: Op, b: Op, above: Pair | None, aspect: str) -> Reason:
        """The reason of an op with another result type."""
        if found := self.causes.of_types(a, b):
            return found
        shapes = [
            both
            for x, y in zip(a.outs, b.outs, strict=False)
            for both in leaf_pairs(x.type.shape, y.type.shape)
        ]
        if found := self.settings.of_values(shapes):
            return found
        if constants(a) != constants(b):
            return self.argument(a, b)
        while above is not None:
            if chosen := self.choices(above.left.op, above.right.op):
                return chosen
            above = above.above
        found = self.settings.of_symbols([a, b]) if aspect in ("shape", "strides") else None
        found = found or self._device_rule(a, b) or self.settings.pick(aspect, "target")
        return found or self.unknown(f"{target_name(a.target)} gives another type")

    def rewired(self, a: Op, b: Op) -> Reason:
        """The reason of an op with other operands."""
        found = self.settings.pick() or (
            None if self.settings.other_program else self.settings.together
        )
        return found or Reason(
            "program", f"{target_name(a.target)} gets other tensors", lines_of([a, b])
        )

    # ---- the rest -------------------------------------------------------------------------------

    def rule(self, a: Sequence[Op], b: Sequence[Op]) -> Reason | None:
        """The reason if the derivatives of one op have different rules."""
        names = [sorted({op.rule.name for op in ops if op.rule is not None}) for ops in (a, b)]
        if not all(names) or names[0] == names[1]:
            return None
        rules = " on the left, ".join(", ".join(each) for each in names)
        return Reason("rule", f"the derivative is {rules} on the right", place_of(Derivatives.rule))

    def policy(self, op: Op) -> Reason | None:
        """The reason of an op that runs in one half alone, or again."""
        if found := self.halves() or self.saved(op.outs):
            return found
        if "backward" in (self.left.kind, self.right.kind) and not op.late:
            return Reason("policy", AGAIN, place_of(choose))
        return None

    def saved(self, values: Iterable[Value]) -> Reason | None:
        """The reason why the forward of one pair saves a value."""
        wanted = set(values)
        for name, side in (("left", self.left), ("right", self.right)):
            pair = side.cut.pair
            for saved in pair.saved if pair is not None else ():
                if isinstance(saved.value, Value) and saved.value in wanted:
                    why = FREE if saved.free else saved.reason
                    return Reason("policy", f"the {name} pair saves it: {why}", place_of(choose))
        return None

    def unused(self, *, on_left: bool) -> Reason | None:
        """The reason if no output of the other cut of one recording needs an op."""
        if self.left.recorded is not self.right.recorded:
            return None
        other = self.right if on_left else self.left
        return Reason(
            "unused", f"no output of the {other.kind} cut needs what it makes", place_of(live)
        )

    def of_choice(self, op: Op) -> Reason | None:
        """The reason of an op that a pass has added."""
        choice = op.choice
        if choice is None:
            return None
        place = place_of(choose if choice.what == SAVED_COPY else emit_history)
        return Reason("table" if choice.what == TABLE else "history", choice.reason, place)

    def fallback(self, ops: Sequence[Op]) -> Reason:
        """The reason if none is known: all settings that differ, or the program."""
        found = self.settings.of_symbols(ops) or self.settings.together
        if found is not None:
            return found
        if self.settings.other_program:
            return Reason("program", "the programs differ", lines_of(ops))
        return self.unknown(f"{', '.join(target_name(op.target) for op in ops[:NAMED])}")

    def unknown(self, what: str) -> Reason:
        """All settings that differ as one reason; else a missing reason, a defect of foretrace."""
        return self.settings.together or Reason("unknown", f"MISSING: why {what} is not known")


# ---- words ---------------------------------------------------------------------------------------


def _called(nodes: Sequence[Node]) -> str:
    names = list(dict.fromkeys(op_name(node.op) for node in nodes))
    more = len(names) - NAMED
    return ", ".join([*names[:NAMED], *([f"{more} more"] if more > 0 else [])])
