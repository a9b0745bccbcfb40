"""The one comparison behind the tests: every cut of a captured program against eager."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

import foretrace
from foretrace.frontends.program import Cut
from tests.support.bits import (
    Fact,
    aliasing,
    aliasing_differences,
    differences,
    same_bits,
    tensor_differences,
    tensors,
)
from tests.support.pairs import PairCut, pair_agrees
from tests.support.subject import Snapshot, Subject, hide_values

CUTS = ("export", "aten", "joint")
TRAINED, PAIR = ("export", "aten"), "pair"
SHOWN = 12  # differences named in one failure

Named = list[tuple[str, Tensor]]


class Program(Protocol):
    """What a capture returns."""

    def cut(self, level: str, **options: object) -> Callable[..., object]: ...

    def pair(self, **options: Any) -> tuple[Cut, Cut]: ...


Capture = Callable[..., Program]


@dataclass
class Seen:
    """One run, as seen from outside."""

    outputs: object
    inputs: Named
    state: Named
    aliases: set[Fact]
    gradients: list[tuple[list[str], Tensor | None]]
    rng: Tensor
    counted: dict[str, int] = field(default_factory=dict)
    """by name: the writes that a version counter has counted"""
    tangents: list[Tensor] = field(default_factory=list)
    mutated: list[str] = field(default_factory=list)


@dataclass
class Report:
    """What was captured, and how much of it was compared."""

    program: Program
    cuts: dict[str, Callable[..., object]]
    outputs: int = 0
    gradients: int = 0
    without_gradient: int = 0
    mutated: list[str] = field(default_factory=list)
    aliases: int = 0


def same_as_eager(
    fn: Callable[..., object],
    args: Sequence[object],
    kwargs: dict[str, object] | None = None,
    *,
    cuts: Sequence[str] = CUTS,
    loss: int | None = 0,
    seed: int = 0,
    dynamic_shapes: object = None,
    target: object = None,
    keep: Sequence[object] = (),
    open: Sequence[object] = (),
    more_args: Sequence[Sequence[object]] = (),
    policies: Sequence[object] = (),
    versions: bool = True,
    capture: Capture = foretrace.capture,
) -> Report:
    """Capture once, run every cut on fresh inputs, and compare all that can be seen with eager.

    `loss` is the index of the differentiated output, None for random tangents of all of them.
    Each of `more_args` is a further set of inputs for the same cuts, each of `policies` a pair.
    `versions`: whether version counters count as in eager, too.
    """
    given = Subject(fn, tuple(args), kwargs or {})
    live = given.fresh()
    program = _capture(capture, live, target=target, dynamic_shapes=dynamic_shapes)
    chosen = {"keep": list(keep), "open": list(open)}
    made = {
        name: program.cut(name, **chosen, **({"loss": loss} if name == "joint" else {}))
        for name in cuts
    }
    for policy in policies:
        halves = program.pair(loss=loss, policy=policy, **chosen)
        pair_agrees(*halves)
        made[f"{PAIR} by {policy}"] = PairCut(*halves)
    report = Report(program, made)
    for inputs in (given.args, *(tuple(more) for more in more_args)):
        subject = Subject(given.fn, inputs, given.kwargs)
        eager = _run_eager(subject.fresh(), loss, seed)
        eager.counted = eager.counted if versions else {}
        _count(report, eager)
        for name, cut in made.items():
            fresh = subject.fresh()
            ran = Subject(live.fn, fresh.args, fresh.kwargs)
            _compare(name, cut, ran, eager, loss, seed)
    return report


def _capture(capture: Capture, live: Subject, **options: object) -> Program:
    """Capture without letting it see a value, and check that it changed nothing."""
    original = Snapshot.take(live)
    hide_values(live)
    hidden, rng = Snapshot.take(live), torch.get_rng_state()
    program = capture(live.fn, live.args, live.kwargs, **options)
    wrong = hidden.differences(live)
    if not torch.equal(rng, torch.get_rng_state()):
        wrong.append("the random state has advanced")
    _fail_on("capturing", wrong)
    original.put_back()
    return program


def _compare(
    name: str, cut: Callable[..., object], ran: Subject, eager: Seen, loss: int | None, seed: int
) -> None:
    before = Snapshot.take(ran)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed walks the stack, three times
    if name == "joint" or name.startswith(PAIR):
        seen = _run_joint(cut, ran, eager, loss)
    else:
        seen = _run_forward(cut, ran, eager, loss, train=name == "export")
    wrong = list(_all_differences(name, eager, seen))
    if name != "export" and before.gradients_written():
        wrong.append("a .grad was written")
    before.put_back()
    _fail_on(f"the {name} cut", wrong)


def _fail_on(what: str, wrong: Sequence[str]) -> None:
    if wrong:
        more = [f"... and {len(wrong) - SHOWN} more"] if len(wrong) > SHOWN else []
        lines = "\n  ".join([*wrong[:SHOWN], *more])
        message = f"{what} differs from eager:\n  {lines}"
        raise AssertionError(message)


def _wanted(subject: Subject) -> list[tuple[list[str], Tensor]]:
    """The tensors that want a gradient, each once, with every name it goes by."""
    names: dict[int, tuple[list[str], Tensor]] = {}
    for name, tensor in [*subject.state(), *subject.inputs()]:
        if tensor.requires_grad and tensor.is_leaf:
            names.setdefault(id(tensor), ([], tensor))[0].append(name)
    return list(names.values())


def _tangents(outputs: Named) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1234)
    return [
        torch.empty_like(tensor.detach()).normal_(generator=generator)
        for _, tensor in outputs
        if tensor.requires_grad
    ]


def _backward(outputs: object, loss: int | None, tangents: Sequence[Tensor]) -> None:
    """`loss.backward()`, or that of every output with the tangents given."""
    named = tensors(outputs, "output")
    if loss is not None:
        named[loss][1].backward()
        return
    wanting = [tensor for _, tensor in named if tensor.requires_grad]
    if wanting:
        copies = [tangent.clone() for tangent in tangents]
        torch.autograd.backward(wanting, copies)


def _run_eager(subject: Subject, loss: int | None, seed: int) -> Seen:
    wanted, inputs, state = _wanted(subject), subject.inputs(), subject.state()
    old = [(name, tensor, tensor.detach().clone()) for name, tensor in [*inputs, *state]]
    versions = _versions(inputs, state)
    torch.default_generator.manual_seed(seed)
    outputs = subject.fn(*subject.args, **subject.kwargs)
    named = tensors(outputs, "output")
    aliases = aliasing([*inputs, *state], named)
    tangents = _tangents(named) if loss is None else []
    if any(tensor.requires_grad for _, tensor in named):
        _backward(outputs, loss, tangents)
    gradients = [(names, tensor.grad) for names, tensor in wanted]
    changed = dict(subject.state())
    mutated = [
        name
        for name, tensor, values in old
        if changed.get(name, tensor).shape != values.shape
        or not same_bits(changed.get(name, tensor), values)
    ]
    rng = torch.get_rng_state()
    counted = _counted(versions)
    return Seen(
        outputs, inputs, subject.state(), aliases, gradients, rng, counted, tangents, mutated
    )


def _versions(inputs: Named, state: Named) -> list[tuple[str, Tensor, int]]:
    """The version counters that there are: inference tensors have none."""
    return [(n, t, t._version) for n, t in [*inputs, *state] if not t.is_inference()]


def _counted(before: list[tuple[str, Tensor, int]]) -> dict[str, int]:
    """How many writes each version counter has counted since."""
    return {name: tensor._version - version for name, tensor, version in before}


def _run_forward(
    cut: Callable[..., object], ran: Subject, eager: Seen, loss: int | None, *, train: bool
) -> Seen:
    wanted, inputs, state = _wanted(ran), ran.inputs(), ran.state()
    versions = _versions(inputs, state)
    outputs = cut(*ran.args, **ran.kwargs)
    named = tensors(outputs, "output")
    aliases = aliasing([*inputs, *state], named)
    gradients = eager.gradients
    expected = tensors(eager.outputs, "output")
    agree = [tensor.requires_grad for _, tensor in named] == [
        tensor.requires_grad for _, tensor in expected
    ]
    if train and agree:
        if any(tensor.requires_grad for _, tensor in named):
            _backward(outputs, loss, eager.tangents)
        gradients = [(names, tensor.grad) for names, tensor in wanted]
    rng, counted = torch.get_rng_state(), _counted(versions)
    return Seen(outputs, inputs, ran.state(), aliases, gradients, rng, counted)


def _run_joint(cut: Callable[..., object], ran: Subject, eager: Seen, loss: int | None) -> Seen:
    wanted, inputs, state = _wanted(ran), ran.inputs(), ran.state()
    versions = _versions(inputs, state)
    fixed = {name for name, tensor in [*inputs, *state] if not tensor.requires_grad}
    copies = [tangent.clone() for tangent in eager.tangents]
    given = {} if loss is not None else {"tangents": copies}
    result = cut(*ran.args, **ran.kwargs, **given)
    if not isinstance(result, tuple) or len(result) != 2:
        message = f"the joint cut returned {type(result).__name__}, not (outputs, gradients)"
        raise AssertionError(message)
    outputs, found = result
    aliases = aliasing([*inputs, *state], tensors(outputs, "output"))
    gradients = _by_name(dict(found), [names for names, _ in wanted], fixed)
    rng, counted = torch.get_rng_state(), _counted(versions)
    return Seen(outputs, inputs, ran.state(), aliases, gradients, rng, counted)


def _by_name(
    found: dict[str, Tensor | None], wanted: list[list[str]], fixed: set[str]
) -> list[tuple[list[str], Tensor | None]]:
    """The gradients in the order of `wanted`: by any of a tensor's names, then by order."""
    known = {name for names in wanted for name in names}
    spare = [name for name in found if name not in known]
    spare = [name for name in spare if not (name in fixed and found[name] is None)]
    nameless = [names for names in wanted if not any(name in found for name in names)]
    if len(spare) != len(nameless):
        lacking = [names[0] for names in nameless]
        message = f"the joint cut: gradients for {spare} are unexpected, for {lacking} missing"
        raise AssertionError(message)
    by_order = {names[0]: name for names, name in zip(nameless, spare, strict=True)}
    pairs = [(names, _first(names, found, by_order)) for names in wanted]
    return [(names, found[name]) for names, name in pairs]


def _first(names: list[str], found: dict[str, Tensor | None], by_order: dict[str, str]) -> str:
    present = [name for name in names if name in found]
    return present[0] if present else by_order[names[0]]


def _gradient_differences(eager: Seen, seen: Seen) -> Iterator[str]:
    for (names, left), (_, right) in zip(eager.gradients, seen.gradients, strict=True):
        path = f"gradient of {names[0]}"
        if left is None or right is None:
            if left is not right:
                sides = ["None" if side is None else "a tensor" for side in (left, right)]
                yield f"{path}: {sides[0]} in eager, {sides[1]} in the cut"
        else:
            yield from tensor_differences(left, right, path, strides=False)


def _named_differences(kind: str, left: Named, right: Named) -> Iterator[str]:
    if [name for name, _ in left] != [name for name, _ in right]:
        names = [[name for name, _ in side] for side in (left, right)]
        yield f"{kind}: names are {names[0]} in eager, {names[1]} in the cut"
        return
    for (name, tensor), (_, other) in zip(left, right, strict=True):
        yield from tensor_differences(tensor, other, f"{kind} {name} after the run")


def _wants_gradient(outputs: object) -> list[tuple[str, bool]]:
    return [(name, tensor.requires_grad) for name, tensor in tensors(outputs, "output")]


def _all_differences(name: str, eager: Seen, seen: Seen) -> Iterator[str]:
    found = list(differences(eager.outputs, seen.outputs, "output"))
    yield from found
    yield from _named_differences("input", eager.inputs, seen.inputs)
    yield from _named_differences("state", eager.state, seen.state)
    yield from _gradient_differences(eager, seen)
    if not found:
        yield from aliasing_differences(eager.aliases, seen.aliases)
        flags = zip(_wants_gradient(eager.outputs), _wants_gradient(seen.outputs), strict=True)
        for (path, left), (_, right) in flags if name in TRAINED else ():
            if left != right:
                yield f"{path}: requires_grad is {left} in eager, {right} in the cut"
    for path, count in eager.counted.items():
        if count != (ours := seen.counted.get(path, count)):
            yield f"{path}: {count} writes are counted in eager, {ours} in the cut"
    if not torch.equal(eager.rng, seen.rng):
        yield "the random state after the run differs: more or fewer numbers were drawn"


def _count(report: Report, eager: Seen) -> None:
    report.outputs += len(tensors(eager.outputs))
    report.gradients += sum(gradient is not None for _, gradient in eager.gradients)
    report.without_gradient += sum(gradient is None for _, gradient in eager.gradients)
    report.aliases += len(eager.aliases)
    report.mutated += eager.mutated
