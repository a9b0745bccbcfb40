"""A program saved and loaded again: the cuts of the file beside those that were saved."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

import foretrace
from foretrace.frontends.program import Cut, Program
from foretrace.frontends.program.load import Loaded
from foretrace.ir.program.effect import Effect
from foretrace.ir.program.effects import LeaveState
from foretrace.ir.pydata.containers import Structure
from foretrace.ir.pydata.state import State
from foretrace.runtime.calls.run_cut import run_pair
from tests.support.bits import aliasing, differences, tensors
from tests.support.subject import Snapshot, Subject


@dataclass
class Saved:
    """A program, and its file."""

    program: Program
    live: Subject
    path: Path
    cuts: dict[str, Any]
    """those that were saved, by name: cuts, and a pair"""

    def loaded(self) -> Loaded:
        """The file, read anew."""
        return foretrace.load(self.path, classes=classes_of(self.program))


def through_a_file(program: Program, *cuts: Any) -> Loaded:
    """What is loaded of a file with these cuts; it reads and writes the program's own state."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "program.ft"
        program.save(path, *cuts)
        loaded = foretrace.load(path, classes=classes_of(program))
    pairs = zip(loaded.program.recorded.inputs, program.recorded.inputs, strict=True)
    for mine, live in pairs:
        mine.owner, mine.tensor, mine.read = live.owner, live.tensor, live.read
    effects, live = loaded.program.recorded.effects, iter(program.recorded.states)
    effects[:] = [_on_state_of(live, effect) for effect in effects]
    return loaded


def _on_state_of(live: Iterator[State], effect: Effect) -> Effect:
    if not isinstance(effect, LeaveState):
        return effect
    return LeaveState(replace(effect.state, place=next(live).place))


def classes_of(program: Program) -> list[type]:
    """The classes of its arguments and results that nobody has registered."""
    recorded = program.recorded
    return [*_classes(recorded.requires.in_structure), *_classes(recorded.out_structure)]


def _classes(structure: Structure) -> Iterator[type]:
    yield from _named_tuples(structure.spec)
    for _, kind, below in structure.objects:
        yield kind
        yield from _classes(below)


def _named_tuples(spec: Any) -> Iterator[type]:
    if isinstance(spec.context, type):
        yield spec.context
    for child in spec.children():
        yield from _named_tuples(child)


def saved(
    subject: Subject, path: Path, cuts: Sequence[str], loss: int | None, **options: Any
) -> Saved:
    """Capture and save a program; a cut that it does not have is left out."""
    live = subject.fresh()
    program = foretrace.capture(live.fn, live.args, live.kwargs, **options)
    made: dict[str, Any] = {}
    for name in cuts:
        made[name] = program.pair(loss=loss) if name == "pair" else program.cut(name, loss=loss)
    program.save(path, *made.values())
    return Saved(program, live, path, made)


def same_again(of: Saved, subject: Subject, loss: int | None, seed: int = 0) -> int:
    """Run each cut that was saved, and that of the file, from the same state.

    Returns:
        How many tensors were compared.
    """
    count = 0
    for name, cut in of.cuts.items():
        before = Snapshot.take(of.live)
        ran = subject.fresh()
        one = Subject(of.live.fn, ran.args, ran.kwargs)
        first = seen(cut, of.program, one, loss, seed)
        loaded, fresh = of.loaded(), subject.fresh()
        again: Any = loaded.pair() if name == "pair" else loaded.cut(name)
        second = seen(again, loaded.program, fresh, loss, seed)
        wrong = list(differences(first, second, name))
        before.put_back()
        assert not wrong, "\n".join(["the loaded cut differs:", *wrong[:12]])
        count += len(tensors(first))
    return count


def same_explanations(cut: Cut, other: Cut) -> int:
    """Whether both tell the same of every node; gives how many there are."""
    assert cut.nodes == other.nodes
    assert str(cut.signature) == str(other.signature)
    for name in cut.nodes:
        assert str(cut.explain(name)) == str(other.explain(name))
        assert cut.explain(name).to_dict() == other.explain(name).to_dict()
    return len(cut.nodes)


def seen(cut: Any, program: Program, given: Subject, loss: int | None, seed: int = 0) -> Any:
    """All that can be seen of one run; of one that raises, or is refused, how."""
    try:
        return _run(cut, program, given, loss, seed)
    except (RuntimeError, IndexError) as error:  # a Refusal is one
        return f"{type(error).__name__}: {error}"


def _run(cut: Any, program: Program, given: Subject, loss: int | None, seed: int) -> Any:
    """All that can be seen of one run."""
    torch.default_generator.manual_seed(seed)
    call: Callable[..., Any] = cut
    kind = "pair" if isinstance(cut, tuple) else cut.graph.kind
    if kind == "pair":
        call = lambda *args, tangents=None, **kwargs: run_pair(*cut, args, kwargs, tangents)  # noqa: E731
    state = _state(program)
    more: dict[str, Any] = {}
    if kind in {"joint", "pair"} and loss is None:
        more = {"tangents": _tangents(program)}
    outputs = call(*given.args, **given.kwargs, **more)
    found = tensors(outputs, "output")
    if kind == "export":
        _backward(found, loss)
    inputs = given.inputs()
    grads = {name: tensor.grad for name, tensor in [*inputs, *state] if tensor.is_leaf}
    return {
        "outputs": outputs, "inputs": dict(inputs), "state": dict(_state(program)),
        "gradients": grads, "random": torch.get_rng_state(),
        "alias": sorted(map(str, aliasing([*inputs, *state], found))),
        "follows": [tensor.requires_grad for _, tensor in found],
    }  # fmt: skip


def _state(program: Program) -> list[tuple[str, Tensor]]:
    """The tensors that the program reads beside its arguments, as they are now."""
    found = []
    for item in program.recorded.inputs:
        if item.argument is None and item.gradient_of is None and item.size is None:
            live = item.live()
            assert live is not None
            found.append((item.role.name, live))
    return found


def _tangents(program: Program) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1234)
    recorded = program.recorded
    types = [o.value.type for o in recorded.outputs if recorded.differentiable(o.value)]
    hint = recorded.symbols.hint
    laid = [
        torch.empty_strided([*map(hint, t.shape)], [*map(hint, t.stride)], dtype=t.dtype)
        for t in types
    ]
    return [torch.empty_like(each).normal_(generator=generator) for each in laid]


def _backward(outputs: list[tuple[str, Tensor]], loss: int | None) -> None:
    if loss is not None:
        outputs[loss][1].backward()
        return
    wanting = [tensor for _, tensor in outputs if tensor.requires_grad]
    generator = torch.Generator().manual_seed(1234)
    if wanting:
        drawn = [torch.empty_like(t.detach()).normal_(generator=generator) for t in wanting]
        torch.autograd.backward(wanting, drawn)
