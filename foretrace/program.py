"""foretrace's own entry points: capture a program, cut it, run and explain the cuts."""

import pathlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial, wraps
from typing import Any, Literal, NoReturn, ParamSpec, TypeAlias

import torch
from torch import fx

from foretrace.artifact.saving import check_saved, save
from foretrace.artifact.stored import PAIR, Stored
from foretrace.asking.path import Path
from foretrace.backends.by_name import Backend, building
from foretrace.branches.explore import explored
from foretrace.emit.fx import to_fx
from foretrace.errors import Refusal, Refusing
from foretrace.explain.explanation import Explanation
from foretrace.explain.why import explain
from foretrace.frames.sources import Asked
from foretrace.guards.calls import CallGuards
from foretrace.guards.small import SmallSizes
from foretrace.ir.program import Graph, Recorded, Signature, Target
from foretrace.ir.requirements import Answered
from foretrace.ir.types import Arrived, Laid
from foretrace.ir.verify import verify_graph, verify_module, verify_pair, verify_record
from foretrace.partition.again import made_again
from foretrace.partition.parts import PARTS, parts_of
from foretrace.partition.policies import MIN_CUT, SAVE_ALL, Policy
from foretrace.partition.split import Pair, Saved, partition
from foretrace.passes.bare import check_gradients_bare
from foretrace.passes.cut import Level, forward_graph, inference_graph, joint_graph
from foretrace.passes.decompose import decompose
from foretrace.passes.live import needs
from foretrace.passes.select import Selector, check_selectors
from foretrace.passes.table_recorder import Table
from foretrace.python_state.counts import Counts
from foretrace.recording.capture import Capture
from foretrace.recording.setup import (
    RULES,
    Branches,
    Values,
    check_branches,
    counting,
    prepare,
    warmed,
)
from foretrace.records.told import asserted
from foretrace.rules.table import BackwardCall, Registered, rule_name
from foretrace.runtime.calls import run_forward, run_half, run_joint, run_step
from foretrace.runtime.compiled import Compiled, not_copied
from foretrace.runtime.untrained import Untrained, untrained
from foretrace.symbols.sizes import Guard
from foretrace.targets.semantics import Captured, TargetSemantics
from foretrace.wrappers.opened import unwrapped

HALVES = ("forward", "backward")
STEP = "step"

P = ParamSpec("P")
Again: TypeAlias = Callable[[Arrived], "tuple[Cut, ...]"]
At: TypeAlias = Callable[[Captured], "tuple[Cut, ...]"]


class Program:
    """One recorded run; every graph is a cut through its tree."""

    def __init__(
        self, recorded: Recorded, semantics: TargetSemantics, *, verify: bool = False
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
    def guards(self) -> tuple[Guard | Answered, ...]:
        """What a later call has to fulfil of sizes and values, each with the user's line."""
        return self.recorded.guards

    def __repr__(self) -> str:
        return _shown("program", self, f"{len(self.recorded.ops)} ops")

    def __reduce__(self) -> Any:
        """Refuse a copy or pickle."""
        raise not_copied("a program", "capture again, or program.save(path)")

    def cut(
        self,
        kind: str,
        *,
        loss: int | None = None,
        keep: Iterable[Selector] = (),
        open: Iterable[Selector] = (),
        policy: Policy | None = None,
        decompositions: Table | None = None,
    ) -> "Cut":
        """A graph of the program; the program does not run again.

        Args:
            kind: "export" (forward, ops as written), "aten" (forward, leaf ops), "step" (leaf ops
                of a step that calls backward() itself), "joint" (forward and backward), "forward"
                or "backward" (the halves of joint).
            loss: for all but "export" and "aten", the index of the scalar output to differentiate;
                None makes the gradients of the outputs inputs of the graph.
            keep: ops to leave whole: names, OpOverloads, or predicates on an Op.
            open: ops to take apart where the cut would leave them whole.
            policy: for the halves, what is saved: see `pair`; None: "min_cut". For a step, what of
                the forward its backward does not make again; None: "save_all", as eager.
            decompositions: functions by OpOverload, such as torch.export.default_decompositions();
                every op of the cut that has an entry is opened by it, as far down as that goes.

        Raises:
            Refusal: an op on the way of a gradient has no derivative, the loss is no scalar, or a
                decomposition raises.
        """
        if kind in HALVES:
            pair = self.pair(
                loss=loss, policy=policy or MIN_CUT, keep=keep, open=open,
                decompositions=decompositions,
            )  # fmt: skip
            return pair[HALVES.index(kind)]
        level = Level(kind == "export", tuple(keep), tuple(open))
        with self._asked():
            check_selectors(self.recorded.ops, (*level.keep, *level.open))
        return self.cut_at(kind, level, loss, decompositions, policy=policy or SAVE_ALL)

    def cut_at(
        self, kind: str, level: Level, loss: int | None, table: Table | None,
        given: Arrived | None = None, known: Graph | None = None, policy: Policy = SAVE_ALL,
    ) -> "Cut":  # fmt: skip
        """The cut of a level, whose selectors are checked; `given`: how tangents lie.

        `known`: its graph, where it was made before.
        """

        def make(
            recorded: Recorded, semantics: TargetSemantics, put: Callable[[Any], Any]
        ) -> Graph:
            arrived = given and tuple([
                s and (s if isinstance(s, Laid) else tuple(map(put, s))) for s in given
            ])  # fmt: skip
            graph = _graph(recorded, semantics, kind, level, loss, arrived)
            graph = graph if table is None else decompose(graph, table, semantics, level.kept)
            return made_again(graph, recorded, semantics, policy) if kind == STEP else graph

        with self._asked():
            graph = known or make(self.recorded, self.semantics, lambda size: size)
        self._verify(graph)

        def again(given: Arrived) -> tuple[Cut]:
            return (self.cut_at(kind, level, loss, table, given, policy=policy),)

        def at(there: Captured) -> tuple[Cut]:
            return (self._of(there).cut_at(kind, level, loss, table, policy=policy),)

        small = SmallSizes(self.recorded, self.semantics, graph, make)
        stored = Stored(kind, graph, loss, level, table is not None)
        return Cut(self, graph, loss, small, again, at, stored=stored)

    def _of(self, there: Captured) -> "Program":
        """The program at sizes that are 0 or 1."""
        return Program(there.recorded, there.semantics, verify=self.verify)

    def _verify(self, *graphs: Graph) -> None:
        for graph in graphs if self.verify else ():
            verify_graph(graph, self.recorded, self.semantics.inference.again)

    def _asked(self) -> Asked:
        return Asked("capture", self.recorded.requires.defined)

    def compile(self, backend: Backend = "eager") -> Compiled:
        """A callable for calls like the captured one, which trains through autograd.

        A call that breaks a guard is refused, as a cut refuses it; `foretrace.compile` captures
        again. Python values that are no arguments are as the capture saw them.

        Args:
            backend: as `foretrace.compile` takes it.

        Raises:
            Refusal: there is no such backend; when called: a guard is broken.
        """
        asked = self._asked()
        with asked:
            cut = self.cut("export")
            capture = partial(self._captured, cut.small, backend != "eager")
            return Compiled(cut, capture, building(backend), asked)

    def _captured(
        self, small: SmallSizes, anyhow: bool, fn: Any, args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Captured:  # fmt: skip
        """In the place of a capture: the record that there is, or that at a call's sizes 0 and 1.

        `anyhow`: what is made of it is not shown to hold for those.
        """
        _, sizes = self.calls.inputs(args, kwargs, small=True)
        there = small.there(sizes, anyhow=anyhow)
        return there or Captured(self.recorded, self.semantics)

    def pair(
        self,
        *,
        loss: int | None = None,
        policy: Policy = "min_cut",
        keep: Iterable[Selector] = (),
        open: Iterable[Selector] = (),
        decompositions: Table | None = None,
    ) -> tuple["Cut", "Cut"]:
        """The forward and the backward half of the joint cut.

        Args:
            loss: the index of the scalar output to differentiate; None: tangents are inputs.
            policy: "min_cut" (fewest bytes that running cheap ops again allows), "save_all",
                "recompute_all", or a predicate on an Op (True: save what it made). Whatever it
                says, random numbers are drawn once, and what ran under `torch.utils.checkpoint`
                runs again.
            keep: ops to leave whole: names, OpOverloads, or predicates on an Op.
            open: ops to take apart where the cut would leave them whole.
            decompositions: as for a cut; the joint graph is opened by them before it is split.

        Raises:
            Refusal: as for the joint cut, or there is no such policy.
        """
        cut = self.cut("joint", loss=loss, keep=keep, open=open, decompositions=decompositions)

        return self.halves_of(cut, policy)

    def parts(
        self, *, policy: Policy | None = None, decompositions: Table | None = None
    ) -> tuple["Cut", "Cut", "Cut"]:
        """The forward, the backward and the update of a step, each a graph of its own.

        They are called flat, in the order of their signatures; what one hands to the next has the
        role "saved", or "gradient". They check no guards and write nothing back.

        Args:
            policy: as for `cut("step")`; what is made again is in the backward.
            decompositions: as for a cut.

        Raises:
            Refusal: the program asks for no gradient, or a backward reads what an update has made.
        """
        step = self.cut(STEP, policy=policy, decompositions=decompositions)
        with self._asked():
            graphs = parts_of(step.graph, self.recorded)
        self._verify(*graphs)
        one, two, three = (Cut(self, graph, None) for graph in graphs)
        return one, two, three

    def halves_of(
        self, of: "Cut", policy: Policy, known: Pair | None = None
    ) -> tuple["Cut", "Cut"]:
        """The halves of a joint cut of this program; `known`: those that were made before."""
        with self._asked():
            pair = known or partition(of.graph, self.recorded, self.semantics, policy)
        both = pair.forward, pair.backward
        if self.verify:
            verify_pair(of.graph, *both)
            self._verify(*both)

        def split(cuts: tuple[Cut, ...]) -> tuple[Cut, Cut]:
            (cut,) = cuts
            return cut.program.halves_of(cut, policy)

        stored = replace(of.stored, name=PAIR, pair=pair, policy=policy)
        first, second = (
            Cut(self, graph, of.loss, of.small, lambda given: split(of.again(given)),
                lambda there: split(of.at(there)), pair, stored=stored) for graph in both
        )  # fmt: skip
        return first, second

    def save(
        self, path: str | pathlib.Path, *cuts: "str | Cut | tuple[Cut, Cut]",
        loss: int | None = None, parameters: Literal["inside", "beside"] = "inside",
        also: "Iterable[Program]" = (),
    ) -> None:  # fmt: skip
        """Write the program into a file that `foretrace.load` reads where its source is not.

        The file is a zip of JSON and safetensors, without pickle. It has the tree, so that every
        node explains itself, the parameters, buffers and constants, and the cuts.

        Args:
            path: where; "step.ft".
            cuts: those that are stored: names ("export", "aten", "step", "joint", "pair"), cuts
                of this program, or pairs; without any, "export", or "step" of a training step.
            loss: for cuts by name, the index of the scalar output to differentiate.
            parameters: "inside" the file, or "beside" it, in `path` with `.safetensors`.
            also: further captures of the same program, which go on from the same state: a call
                that breaks a guard of this one is theirs.

        Raises:
            Refusal: a cut has no graph, or the program needs what no file holds; with the line.
        """
        made = [self._stored(each, loss) for each in cuts or (self.own_cut,)]
        with self._asked():
            check_saved(made, parameters)
            more = [each.recorded for each in also]
            save(pathlib.Path(path), self.recorded, made, more, beside=parameters == "beside")

    @property
    def own_cut(self) -> Literal["step", "export"]:
        """The cut that is called like the program: of a training step, the one below autograd."""
        recorded = self.recorded
        alone = recorded.asks_gradients and not recorded.trained_outside
        return "step" if alone else "export"

    def _stored(self, asked: Any, loss: int | None) -> Stored:
        if isinstance(asked, str):
            both = self.pair(loss=loss) if asked == PAIR else (self.cut(asked, loss=loss),)
        else:
            both = asked if isinstance(asked, tuple) else (asked,)
        stored: Any = getattr(both[0], "stored", None)
        if stored is None or any(each.program is not self for each in both):
            raise Refusal(
                f"{asked!r:.60} is no cut of this program", kind="wrong call",
                do='name it, as program.save(path, "joint"), or pass a cut or a pair of it',
            )  # fmt: skip
        return stored


def _graph(
    recorded: Recorded, semantics: TargetSemantics, kind: str, level: Level, loss: int | None,
    given: Arrived | None,
) -> Graph:  # fmt: skip
    if kind in ("joint", "step"):
        check_gradients_bare(recorded)
    if kind == "joint":
        return unwrapped(joint_graph(recorded, semantics, level, loss, given), semantics)
    if kind == "aten":
        return unwrapped(forward_graph(recorded, semantics, level, kind), semantics)
    if kind == "export":
        return forward_graph(recorded, semantics, level, kind)
    if kind == STEP:
        return unwrapped(inference_graph(recorded, semantics, level, kind), semantics)
    raise Refusal(
        f"there is no cut {kind!r}", kind="unknown cut",
        do='use one of "export", "aten", "step", "joint", "forward", "backward"',
    )  # fmt: skip


def _nobody_calls(*args: object) -> NoReturn:
    """In a cut whose graph is handed on."""
    raise AssertionError(args)


class Cut:
    """One graph: callable, printable, explainable."""

    def __init__(  # noqa: PLR0913 - what a cut is
        self, program: Program, graph: Graph, loss: int | None, small: SmallSizes | None = None,
        again: Again = _nobody_calls, at: At = _nobody_calls, pair: Pair | None = None,
        *, stored: Stored | None = None,
    ) -> None:  # fmt: skip
        self.program, self.graph, self.loss, self.pair = program, graph, loss, pair
        self.calls = program.calls
        self.small = small or SmallSizes(program.recorded, program.semantics, graph, _nobody_calls)
        """tells of which sizes 0 and 1 it holds; of a half, that of the joint cut"""
        self.again: Again = cache(again)
        """makes it, and the other half, for tangents with such strides"""
        self.at: At = cache(at)
        """makes it, and the other half, of the record at sizes 0 and 1"""
        self.stored = stored or Stored(graph.kind, graph, loss, Level(False), opened=True)
        """what a file has of it"""
        self._module: fx.GraphModule | None = None

    def __repr__(self) -> str:
        graph = self.graph
        ends = f"{len(graph.inputs)} in, {len(graph.outputs)} out"
        return _shown(f"{graph.kind} cut", self.program, f"{len(graph.ops)} ops, {ends}")

    def __reduce__(self) -> Any:
        """Refuse a copy or pickle."""
        raise not_copied("a cut", "copy cut.graph_module, or program.save(path)")

    @property
    def signature(self) -> Signature:
        """Roles of every input and output, in the order of the graph module's."""
        return self.graph.signature

    @property
    def graph_module(self) -> fx.GraphModule:
        """The cut as a torch.fx.GraphModule with flat inputs and outputs; built when asked for."""
        if self._module is None:
            recorded = self.program.recorded
            fakes = self.program.semantics.fakes
            self._module = to_fx(self.graph, recorded.symbols, fakes, needs)
            if self.program.verify:
                verify_module(self.graph, self._module, recorded.symbols)
        return self._module

    @cached_property
    def untrained(self) -> Untrained:
        """Results that depend on a Function of which the cut has only the forward."""
        return untrained(self.graph, self.calls.recorded)

    @property
    def saved(self) -> tuple[Saved, ...]:
        """What the forward half hands to the backward half; empty for the other cuts."""
        return self.pair.saved if self.pair is not None else ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes, in order."""
        return tuple(node.name for node in self.graph_module.graph.nodes)

    def explain(self, name: str) -> Explanation:
        """Why a node is there: its path in the tree, from the user's line down to the op.

        Args:
            name: a node's name; "kept.node" for a node inside an op that was kept whole.

        Raises:
            Refusal: the graph has no such node.
        """
        recorded, module = self.program.recorded, self.graph_module
        with Asked("capture", recorded.requires.defined):
            table = self.program.semantics.table
            return explain(recorded, self.graph, module, name, table, self.pair)

    def __call__(
        self, *args: Any, tangents: Sequence[torch.Tensor] | None = None, **kwargs: Any
    ) -> Any:
        """Run the cut on inputs like those it was captured with.

        Returns:
            What the program returns; for a joint cut, that and the gradients by name; for a half
            of it, its results in the signature's order, as its inputs are. A half checks no
            guards and writes nothing back.

        Raises:
            Refusal: an input breaks what the capture relied on.
        """
        recorded = self.calls.recorded
        asserting = Refusing(partial(asserted, recorded), (RuntimeError,))
        with Asked("capture", recorded.requires.defined), asserting:
            if self.graph.kind in PARTS:
                return run_half(self.graph_module, self.graph, args)
            if self.graph.kind == "joint":
                return run_joint(self, args, kwargs, tangents)
            if self.graph.kind == STEP:
                return run_step(self, args, kwargs)
            return run_forward(self, args, kwargs)


def _shown(what: str, program: Program, inside: str) -> str:
    at = program.recorded.requires.defined
    name = f"{at.function} ({at.file}:{at.line})" if at is not None else "torch's own"
    return f"<{what} of {name}: {inside}, target {program.target.name}>"


def _with_old_name(capture: Callable[P, Program]) -> Callable[P, Program]:
    """Takes `guard_values=`, which is what `values=` was before, with a warning."""

    @wraps(capture)
    def both(*args: P.args, **kwargs: P.kwargs) -> Program:
        if "guard_values" in kwargs:
            kwargs["values"] = "guard" if kwargs.pop("guard_values") else "refuse"
            message = f"guard_values= is values={kwargs['values']!r} now"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
        return capture(*args, **kwargs)

    return both


@_with_old_name
def capture(  # noqa: PLR0913 - what may be said of a capture
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    target: str | Target | None = None,
    dynamic_shapes: Any = None,
    values: Values = "guard",
    branches: Branches = "guard",
    warm: bool = False,
    verify: bool = False,
) -> Program:
    """Run a program once over abstract tensors and keep what it did.

    Args:
        fn: a function or nn.Module; it runs unmodified, and kernels run only to answer questions.
        args: its positional arguments.
        kwargs: its keyword arguments.
        target: the device to capture for; None: the inputs' own.
        dynamic_shapes: which input sizes are symbols, in torch.export's form; True: every one.
        values: what becomes of a question about the inputs' values that is answered by yes or no
            (a Python `if`). "guard": the example inputs answer it; the answer is a guard, which the
            graphs assert, too. "refuse": it is refused, as every other question is.
        branches: what becomes of a Python `if` on data. "guard": as `values` says. "both": the
            program runs once for each answer, and the sides are a cond, up to where they meet.
        warm: call the program once before, as Python, for what only its first call makes: lazy
            modules, caches, hooks, state. The call does all that the program does.
        verify: hold the record, and each graph that is made of it, against docs/stages.md.

    Raises:
        Refusal: the program has no exact graph; the message has the user's line and a way out.
    """
    given = (fn, args, kwargs or {}, target, dynamic_shapes)
    counts = Counts(opens=values == branches == "guard")  # two sides leave no state

    with Asked("capture", fn):
        check_branches(branches)
        once = partial(_once, given, values, counts)
        ran = warmed(partial(explored, once, branches), fn, args, kwargs, warm=warm)
    return Program(ran.recorded, ran.semantics, verify=verify)


def _once(
    given: tuple[Any, ...], values: Values, counts: Counts, path: Path | None
) -> Captured:  # fmt: skip
    """One way through a program; `given`: what `capture` was, but how it is to answer."""

    def make() -> Capture:
        run = prepare(*given, values=values, watch=True)
        run.questions.follow(path, run.recorder)
        return run

    return counting(counts, make, given[0], tuple(given[1]), given[2])


def rule(op: Any, *, backward: Callable[[BackwardCall], Any]) -> None:
    """Let foretrace use `backward` for an operator instead of torch's own derivative.

    Args:
        op: an OpOverload, or a packet such as torch.ops.aten.histc for all its overloads; a
            composite that has a rule is not opened on the way of a gradient.
        backward: a function of a BackwardCall (args, kwargs, results, grads, needs) that computes
            with torch ops, and returns the gradient of each tensor argument, or None.

    Raises:
        Refusal: `backward` is not callable.
    """
    RULES.register(op, Registered(backward, rule_name(op, backward)))
