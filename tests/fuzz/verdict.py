"""A program by every route against eager: same, refused, wrong or raw, with what differs."""

import ctypes
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

import foretrace
from tests.fuzz.routes import Route, Runs, eager, routes_of
from tests.fuzz.values import CLOSE, Look, unlike
from tests.fuzz.world import Call, Seen, Wanted, World, same_random
from tests.support.bits import aliasing_differences

SAME, REFUSED, WRONG, RAW, ABORT, TIMEOUT = "same", "refused", "WRONG", "raw", "abort", "timeout"
FAILURES = (WRONG, RAW, ABORT, TIMEOUT, CLOSE)
NOTHING = "nothing"  # to compare: eager differs from run to run
NUMBERS = re.compile(r"%\w+|\d+")
GUARD = "Guard failed"  # how torch's exported modules refuse a call
SPENT = "double backward"
AFTER = "after a refusal: "
AGAIN = "backward through the graph a second time"  # what eager raises of a history left by a call
SHOWN = 4  # differences told of one call
PERTURB = -6  # the option of glibc's malloc to fill what it gives
FILLS = (0x55, 0xC1)


@dataclass(frozen=True)
class Verdict:
    """What became of one program by one route; close is wrong in the last bits alone."""

    route: str
    status: str
    kind: str = ""
    """of a refusal; of what differs; the type of a raw error"""
    detail: str = ""
    agreed: bool = False
    """of a refusal: eager raises, too"""

    @property
    def failed(self) -> bool:
        """Whether this must not be."""
        return self.status in FAILURES

    @property
    def cause(self) -> tuple[str, str, str]:
        """What two failures of one cause have in common, as far as can be told from outside."""
        return self.route, self.status, self.kind


def judged(
    text: str, *, only: str | None = None, say: Callable[[str], None] = lambda route: None
) -> list[Verdict]:
    """Run a program by every route, or by one, and hold each against eager.

    Args:
        text: the program.
        only: the one route.
        say: told of each route before it is taken.
    """
    names = World(text).names
    twins: dict[tuple[tuple[int, ...], bool], list[Seen]] = {}
    found = []
    for route in routes_of(names, text):
        if only is not None and route.name != only:
            continue
        say(route.name)
        way = route.calls, route.quiet
        if way not in twins:
            twins[way] = list(_sequence(text, *way))
        twin = twins[way]
        if route.at_once and not any(seen.tangents for seen in twin):
            continue  # nothing to differentiate
        verdict = _judge(text, route, twin)
        differs = verdict.status in (WRONG, CLOSE)
        found.append(_repeated(text, route, verdict) if differs else verdict)
    return found


def _repeated(text: str, route: Route, verdict: Verdict) -> Verdict:
    """The verdict, unless eager differs from itself in what it says.

    Some programs read memory that nobody has written: `torch.empty`, what `out=` grows and reads,
    `median` along an expanded dimension.
    """
    runs = [_filled(byte, text, route) for byte in FILLS]
    pairs = zip(*runs, strict=True)
    kinds = {
        kind.replace(CLOSE, "values") for pair in pairs for kind, _ in _differences(route, *pair)
    }
    if verdict.kind.removeprefix(AFTER).replace(CLOSE, "values") not in kinds:
        return verdict
    return Verdict(route.name, NOTHING, "eager differs from run to run", verdict.detail)


def _filled(byte: int, text: str, route: Route) -> list[Seen]:
    """What eager gives where all memory that it allocates has a content."""
    set_option = ctypes.CDLL(None).mallopt
    set_option(PERTURB, byte)
    try:
        return list(_sequence(text, route.calls, route.quiet))
    finally:
        set_option(PERTURB, 0)


def _sequence(text: str, calls: tuple[int, ...], quiet: bool) -> Iterator[Seen]:
    world = World(text)
    run = eager(world, quiet=quiet)
    for number in calls:
        yield run(Call(world, number))


def _judge(text: str, route: Route, twin: list[Seen]) -> Verdict:
    world = World(text)
    torch.default_generator.manual_seed(99)
    before = torch.get_rng_state()
    try:
        run = route.start(world)
    except BaseException as error:  # noqa: BLE001  every kind of it is an outcome
        if not torch.equal(before, torch.get_rng_state()):
            return Verdict(route.name, WRONG, f"{AFTER}the random state")
        verdict = _of_error(route, error, None)
        call = Call(world, route.calls[0])
        return _still_eager(route, verdict, call, twin[0])
    if not torch.equal(before, torch.get_rng_state()):
        return Verdict(route.name, WRONG, "capturing: the random state")
    return _judge_calls(world, route, run, twin)


def _judge_calls(world: World, route: Route, run: Runs, twin: list[Seen]) -> Verdict:
    """The first failure of a sequence of calls; else the first refusal; else that all is same."""
    refused: Verdict | None = None
    for number, expected in zip(route.calls, twin, strict=True):
        call = Call(world, number)
        call.tangents = expected.tangents
        seen = run(call)
        verdict = _of_call(route, call, expected, seen)
        if verdict is not None and verdict.status == REFUSED:
            refused = refused or verdict
            if world.changes is not None and expected.raised is None:
                continue  # eager has made the call in its place
        if verdict is not None:
            return verdict
    return refused or Verdict(route.name, SAME)


def _of_call(route: Route, call: Call, expected: Seen, seen: Seen) -> Verdict | None:
    """What is to be said of a call; None if it is as eager's."""
    if seen.raised is not None:
        phase, error = seen.raised
        verdict = _of_error(route, error, expected, f"call {call.number}, {phase}: ")
        if verdict.status == REFUSED and phase == "forward":
            return _still_eager(route, verdict, call, expected)
        return verdict
    if expected.raised is not None:
        phase, error = expected.raised
        if phase == "backward" and not (
            route.gradients and (route.looks or AGAIN not in str(error))
        ):
            return None
        kind = f"eager raises in the {phase}"
        return Verdict(route.name, WRONG, kind, f"call {call.number}: {_first(error)}")
    wrong = list(_differences(route, expected, seen))
    if not wrong:
        return None
    wrong.sort(key=lambda each: each[0].endswith(CLOSE))
    status = CLOSE if wrong[0][0].endswith(CLOSE) else WRONG
    detail = "; ".join(f"{what}: {how}" for what, how in wrong[:SHOWN])
    return Verdict(route.name, status, wrong[0][0], f"call {call.number}: {detail}")


def _of_error(
    route: Route, error: BaseException, expected: Seen | None, where: str = "capture: "
) -> Verdict:
    raised = expected is not None and expected.raised is not None
    if isinstance(error, foretrace.Refusal):
        return Verdict(route.name, REFUSED, error.kind, f"{where}{error}", agreed=raised)
    if raised:
        return Verdict(route.name, SAME, "both raise")
    if isinstance(error, AssertionError) and str(error).startswith(GUARD):
        return Verdict(route.name, REFUSED, "guard broken", f"{where}{error}")
    said = f"{type(error).__name__}: {_first(error)}"
    kind = NUMBERS.sub("N", said)[:50]
    return Verdict(route.name, RAW, kind, f"{where}{said}")


def _still_eager(route: Route, verdict: Verdict, call: Call, expected: Seen) -> Verdict:
    """The verdict of an error, if eager still does then what it did."""
    if expected.raised is not None:
        return verdict
    torch.default_generator.manual_seed(call.number)
    again = eager(call.world, quiet=route.quiet)(call)
    if again.raised is not None:
        phase, error = again.raised
        if isinstance(error, foretrace.Refusal) and error.kind == SPENT:
            return verdict  # of what a joint cut has written before (docs/limits.md), truly
        how = f"eager then raises in the {phase}: {_first(error)}"
        return Verdict(
            verdict.route, WRONG, f"{AFTER}eager raises", f"{how}\nafter: {verdict.detail}"
        )
    first = call.number == route.calls[0]
    compared = replace(route, flat=False, sizes=True, plain=route.binds or first)
    wrong = list(_differences(compared, expected, again))
    if wrong:
        detail = "; ".join(f"{what}: {how}" for what, how in wrong[:SHOWN])
        return Verdict(
            verdict.route,
            WRONG,
            f"{AFTER}{wrong[0][0]}",
            f"{detail}\nafter: {verdict.detail}",
        )
    return verdict


def _differences(route: Route, eager: Seen, seen: Seen) -> Iterator[tuple[str, str]]:
    if route.flat:
        yield from _flat(eager, seen)
        return
    nesting = eager.nesting if route.sizes else eager.nesting.replace("Size(", "tuple(")
    if nesting != seen.nesting:
        yield "nesting", f"{nesting} in eager, {seen.nesting} here"
        return
    for (path, left), (_, right) in zip(eager.outputs, seen.outputs, strict=True):
        for how in unlike(left, right, route.facts):
            yield f"output {how.split(' ')[0].rstrip(':')}", f"{path} {how}"
    yield from _held(eager, seen)
    bound = set() if route.binds else eager.bound
    facts = [{fact for fact in one.aliases if fact[2] not in bound} for one in (eager, seen)]
    for how in aliasing_differences(*facts):
        yield "alias", how
    if route.gradients:
        yield from _gradients(route, eager, seen)
    if route.plain and eager.plain != seen.plain:
        wrong = {k for k in eager.plain if eager.plain[k] != seen.plain.get(k, None)}
        yield "plain data", f"{sorted(wrong)}"
    if route.drawn and not same_random(eager.drawn, seen.drawn):
        yield "random state", "after the forward"
    elif route.gradients and not same_random(eager.random, seen.random):
        yield "random state", "after the backward"


def _flat(eager: Seen, seen: Seen) -> Iterator[tuple[str, str]]:
    ours, theirs = ([o for _, o in one.outputs if isinstance(o, Look)] for one in (eager, seen))
    if len(ours) != len(theirs):
        yield "nesting", f"{len(ours)} tensors in eager, {len(theirs)} here"
        return
    for number, (left, right) in enumerate(zip(ours, theirs, strict=True)):
        # a parameter that the program writes to and returns is new content, which is a tensor
        for how in unlike(replace(left, cls=right.cls), right, ()):
            yield f"output {how.split(' ')[0].rstrip(':')}", f"{number} {how}"


def _held(eager: Seen, seen: Seen) -> Iterator[tuple[str, str]]:
    for kind, ours, theirs in (
        ("input", eager.inputs, seen.inputs),
        ("state", eager.state, seen.state),
    ):
        if [name for name, _ in ours] != [name for name, _ in theirs]:
            yield kind, f"{[n for n, _ in ours]} in eager, {[n for n, _ in theirs]} here"
            continue
        for (name, left), (_, right) in zip(ours, theirs, strict=True):
            for how in unlike(left, right, ("stride",)):
                yield f"{kind} {how.split(' ')[0].rstrip(':')}", f"{name} {how}"


def _gradients(route: Route, eager: Seen, seen: Seen) -> Iterator[tuple[str, str]]:
    for name, left in eager.gradients.items():
        if not _comparable(route, eager.wanted[name], left):
            continue
        right = seen.gradients.get(name)
        if left is None or right is None:
            if left is not right:
                sides = ["None" if one is None else "a tensor" for one in (left, right)]
                yield "gradient None", f"{name}: {sides[0]} in eager, {sides[1]} here"
            continue
        returned = {fact[2] for fact in eager.aliases}
        shared = route.inside_first and not returned.isdisjoint((name, eager.wanted[name].behind))
        for how in unlike(left, right, ()) if not shared else ():
            yield f"gradient {how.split(' ')[0].rstrip(':')}", f"{name} {how}"
    for name in seen.gradients.keys() - eager.gradients.keys():
        if seen.gradients[name] is not None:
            yield "gradient unexpected", name


def _comparable(route: Route, one: Wanted, gradient: Look | None) -> bool:
    """Whether the gradient of a tensor means the same to both.

    A cut that gives gradients itself has one for each argument: it knows nothing of what an
    argument was made of. Autograd has another history of a view once the memory is written to, so
    what it finds for an argument that is a view may be nothing.
    """
    if not route.at_once:
        return not one.history
    return not one.shared and not (one.history and gradient is None)


def _first(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:200]
