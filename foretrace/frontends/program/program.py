"""`Program`: a capture that is cut, compiled and saved."""

import pathlib
from collections.abc import Iterable
from typing import Any, Literal

from torch.export import ExportedProgram

from foretrace import torch_api
from foretrace.autograd.derivatives.target_semantics import Captured
from foretrace.errors import Refusal
from foretrace.frontends.program.cut import STEP, Cut
from foretrace.frontends.program.exported import check_kind, exported
from foretrace.frontends.program.make_cut import Form, cut_at, halves_of
from foretrace.frontends.program.recording_handle import Tree
from foretrace.ir.source.short_tracebacks import Hiding
from foretrace.lowering.cuts.cut import Level
from foretrace.lowering.cuts.decomposition_tracer import Table, table_at
from foretrace.lowering.cuts.selectors import Selector, check_selectors
from foretrace.lowering.partition.policies import MIN_CUT, SAVE_ALL, Policy
from foretrace.lowering.partition.step_parts import parts_of
from foretrace.runtime.backends.by_name import Backend, building
from foretrace.runtime.calls.compiled import Compiled, not_copied
from foretrace.serialization.archive.saving import save
from foretrace.serialization.archive.stored_cut import PAIR, Stored

HALVES = ("forward", "backward")


class Program(Tree):
    """One recorded run; every graph is a cut through its tree."""

    def __reduce__(self) -> Any:
        """Refuse a copy or pickle."""
        raise not_copied("a program", "capture again, or program.save(path)")

    @Hiding()
    def cut(  # noqa: PLR0913 - what may be asked of a graph; all but one are keywords
        self,
        kind: str,
        *,
        loss: int | None = None,
        keep: Iterable[Selector] = (),
        open: Iterable[Selector] = (),
        policy: Policy | None = None,
        decompositions: Table | None = None,
        level: Literal["core"] | None = None,
        numbers: Literal["tensors"] | None = None,
    ) -> Cut:
        """A graph of the program; the program does not run again.

        Args:
            kind: "export" (forward, ops as written), "aten" (forward, leaf ops), "step" (leaf ops
                of a step that calls backward() itself), "joint" (forward and backward), "forward"
                or "backward" (the halves of joint).
            loss: for all but "export" and "aten", the index of the scalar output to differentiate;
                None makes the gradients of the outputs inputs of the graph.
            keep: ops to leave whole: names, OpOverloads, or predicates on an Op.
            open: ops to decompose where the cut would leave them whole.
            policy: for the halves, what is saved: see `pair`; None: "min_cut". For a step, what its
                forward saves for its backward; None: "save_all", as eager.
            decompositions: functions by OpOverload, which open every op that has an entry, as far
                down as that goes; such as torch.export.default_decompositions().
            level: "core": torch's core ATen set by tag, all else opened by torch's decompositions.
            numbers: "tensors": those that Python computes of data are tensors, of the same bits.

        Raises:
            Refusal: a gradient has no derivative, the loss is no scalar, a decomposition raises.
        """
        half, table = kind in HALVES, table_at(level, decompositions)
        whole = Level(kind == "export" and level is None, tuple(keep), tuple(open))
        if whole.keep or whole.open:
            with self.asked():
                check_selectors(self.recorded.ops, (*whole.keep, *whole.open))
        form = Form("joint" if half else kind, whole, loss, table, policy or SAVE_ALL, numbers)
        cut = cut_at(self, form)
        return halves_of(cut, policy or MIN_CUT)[HALVES.index(kind)] if half else cut

    def compile(self, backend: Backend = "eager") -> Compiled:
        """A callable for calls like the captured one, which trains through autograd.

        A call that breaks a guard is refused, as a cut refuses it; `foretrace.compile` captures
        again. Python values that are no arguments are as the capture saw them.

        Args:
            backend: as `foretrace.compile` takes it.

        Raises:
            Refusal: there is no such backend; when called: a guard is broken.
        """
        asked = self.asked()
        with asked:
            cut = self.cut("export")
            return Compiled(cut, self._captured, building(backend), asked)

    def _captured(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Captured:
        """The recording, as a capture for `Compiled`.

        Raises:
            Refusal: the call breaks a guard.
        """
        self.calls.inputs(args, kwargs)
        self.calls.check_grad_mode()
        return Captured(self.recorded, self.semantics)

    @Hiding()
    def export(
        self,
        kind: str,
        *,
        loss: int | None = None,
        decompositions: Table | None = None,
        level: Literal["core"] | None = None,
        numbers: Literal["tensors"] | None = None,
    ) -> ExportedProgram:
        """A graph with its backward in it, as a torch.export.ExportedProgram, for compilers.

        `.module()` of "joint" returns what the program returns, and the gradients by name; that of
        "step", what the step returns. Both write what the program writes. The graph is functional,
        and nothing follows it: parameters share their memory with the program's, and require no
        grad. A gradient that is None, and a `.grad` that a step leaves, are no outputs.

        Args:
            kind: "joint" or "step".
            loss: for "joint", the index of the scalar output to differentiate.
            decompositions: as for a cut.
            level: as for a cut.
            numbers: as for a cut.

        Raises:
            Refusal: as for the cut; no file can have it, or the program leaves state that its next
                call reads, and no buffer can be.
        """
        with self.asked(), torch_api.outside_fake_mode():
            check_kind(kind, loss)
            cut = self.cut(
                kind, loss=loss, decompositions=decompositions, level=level, numbers=numbers
            )
            return exported(cut)

    @Hiding()
    def pair(
        self,
        *,
        loss: int | None = None,
        policy: Policy = "min_cut",
        keep: Iterable[Selector] = (),
        open: Iterable[Selector] = (),
        decompositions: Table | None = None,
    ) -> tuple[Cut, Cut]:
        """The forward and the backward half of the joint cut.

        Args:
            loss: the index of the scalar output to differentiate; None: tangents are inputs.
            policy: "min_cut" (fewest bytes that running cheap ops again allows), "save_all",
                "recompute_all", or a predicate on an Op (True: save its results). Whatever it
                says, random numbers are drawn once, and what ran under `torch.utils.checkpoint`
                runs again.
            keep: ops to leave whole: names, OpOverloads, or predicates on an Op.
            open: ops to decompose where the cut would leave them whole.
            decompositions: as for a cut; the joint graph is opened by them before it is split.

        Raises:
            Refusal: as for the joint cut, or there is no such policy.
        """
        cut = self.cut("joint", loss=loss, keep=keep, open=open, decompositions=decompositions)

        return halves_of(cut, policy)

    @Hiding()
    def parts(
        self, *, policy: Policy | None = None, decompositions: Table | None = None
    ) -> tuple[Cut, Cut, Cut]:
        """The forward, the backward and the update of a step, each a separate graph.

        They are called flat, in the order of their signatures; a value from one to the next has the
        role "saved" or "gradient". They check no guards and write nothing back.

        Args:
            policy: as for `cut("step")`; what is recomputed is in the backward.
            decompositions: as for a cut.

        Raises:
            Refusal: the program asks for no gradient, or a backward reads a result of an update.
        """
        step = self.cut(STEP, policy=policy, decompositions=decompositions)
        with self.asked():
            graphs = parts_of(step.graph, self.recorded)
        self.check(*graphs)
        one, two, three = (Cut(self, graph, None) for graph in graphs)
        return one, two, three

    @Hiding()
    def save(
        self,
        path: str | pathlib.Path,
        *cuts: "str | Cut | tuple[Cut, Cut]",
        loss: int | None = None,
        parameters: Literal["inside", "beside"] = "inside",
        also: "Iterable[Program]" = (),
    ) -> None:
        """Write the program into a file that `foretrace.load` reads where its source is not.

        The file is a zip of JSON and safetensors, without pickle. It has the tree, so that every
        node explains itself, the parameters, buffers and constants, and the cuts.

        Args:
            path: where; "step.ft".
            cuts: those that are stored: names ("export", "aten", "step", "joint", "pair"), cuts
                of this program, or pairs; without any, "export", or "step" of a training step.
            loss: for cuts by name, the index of the scalar output to differentiate.
            parameters: "inside" the file, or "beside" it, in `path` with `.safetensors`.
            also: further captures of the same program and state, for calls that break a guard of
                this one.

        Raises:
            Refusal: a cut has no graph, or the program needs what no file holds; with the line.
        """
        stored = [self._stored(each, loss) for each in cuts or (self.own_cut,)]
        with self.asked():
            programs = [each.recorded for each in (self, *also)]
            save(pathlib.Path(path), programs, stored, parameters)

    @property
    def own_cut(self) -> Literal["step", "export"]:
        """The name of the cut that is called like the program: of a training step, "step"."""
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
                f"{asked!r:.60} is no cut of this program",
                kind="wrong call",
                do='name it, as program.save(path, "joint"), or pass a cut or a pair of it',
            )
        return stored
