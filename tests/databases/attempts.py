"""A sample by every route: what each gave, how it ended, and whether eager is as it was."""

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

import foretrace
from foretrace.errors import PACKAGE_DIR
from tests.databases.children import Record
from tests.databases.routes import EXPORTED, INFERENCE, JOINT, TORCHS, Attempt, made_by
from tests.databases.sample import Case, Sample
from tests.databases.seen import Seen, forward_run, grade, joint_run
from tests.support.subject import Subject
from tests.support.unchanged import state_of
from tests.support.whole import facts_of

MESSAGE: Final = 300  # characters kept of what was said
TRIES: Final = 3  # some kernels of LAPACK's round by where their memory is
NOTHING: Final = "nothing"  # the sample has nothing to compare by this route
RANDOM: Final = "random state of torch"  # what is drawn is compared with eager's


def records(case: Case, routes: Sequence[str], most: int | None) -> Iterator[Record]:
    """Every sample of a case by every route, one record each."""
    for sample in case.samples(most):
        for record in _sample(sample, routes):
            yield {"sample": sample.label, **record}


def _sample(sample: Sample, routes: Sequence[str]) -> Iterator[Record]:
    try:
        eager = forward_run(*_call(sample))
        again = forward_run(*_call(sample))
    except Exception as error:  # noqa: BLE001 - whatever eager raises, there is nothing to compare
        yield {"route": "", "status": NOTHING, "what": f"eager raises {error!r:.{MESSAGE}}"}
        return
    if grade(eager, again, undefined=sample.undefined)[0] != "bitwise":
        yield {"route": "", "status": NOTHING, "what": "eager differs from run to run"}
        return
    attempt, before = Attempt(sample, eager.outputs), state_of()
    for route in routes:
        if route in JOINT and not eager.tangents:
            continue
        if sample.stateful:
            attempt = Attempt(sample, eager.outputs)
        found, after = _by(route, attempt, eager), state_of()
        changed = [name for name in before if name != RANDOM and after.get(name) != before[name]]
        left = {"left": f"torch's {changed}"} if changed else {}
        before = after
        yield {"route": route, **found, **left}


def _call(sample: Sample) -> tuple[Any, Subject]:
    subject = sample.fresh()
    return subject.fn, subject


def _by(route: str, attempt: Attempt, eager: Seen) -> Record:
    stage = "capture"
    try:
        made = made_by(route, attempt)
        stage = "call"
        return _compared(route, made, attempt, eager)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is counted
        if _of_torch(route, error):
            return {"status": "raises", "kind": type(error).__name__, "what": _words(error)}
        return failure(error, stage) | _left(attempt, eager)


def _compared(route: str, made: Any, attempt: Attempt, eager: Seen) -> Record:
    sample = attempt.sample
    status, what = _one(route, made, attempt, sample.fresh(), eager)
    for _ in range(TRIES if not sample.stateful else 0):
        if status == "close":
            status, what = _one(route, made, attempt, sample.fresh(), forward_run(*_call(sample)))
    for other in sample.more if route not in INFERENCE else ():  # its graph has no guards
        expected = _eager(other)
        if expected is None:
            continue
        try:
            found = _one(route, made, attempt, other(), expected)
        except (RuntimeError, AssertionError) as error:  # a Refusal is a RuntimeError
            if not _guard(error):
                raise
            continue
        if found[0] == "wrong" and status != "wrong":
            status, what = found[0], f"of other sizes: {found[1]}"
    return {"status": status, **({"what": what} if what else {})}


def _eager(fresh: Callable[[], Subject]) -> Seen | None:
    """What eager gives; None where it raises, as some do in a backward."""
    subject = fresh()
    try:
        return forward_run(subject.fn, subject)
    except Exception:  # noqa: BLE001 - whatever eager raises, there is nothing to compare
        return None


def _guard(error: RuntimeError | AssertionError) -> bool:
    """Whether it says that the sizes are not those that were captured, in our words or torch's.

    A graph that asserts what it relies on says so in our words.
    """
    if isinstance(error, foretrace.Refusal):
        return error.kind == "guard broken"
    return str(error).startswith(("Guard failed", "guard broken"))


def _one(route: str, made: Any, attempt: Attempt, fresh: Subject, eager: Seen) -> tuple[str, str]:
    subject = Subject(attempt.live.fn, fresh.args, fresh.kwargs)
    undefined = attempt.sample.undefined
    if route in JOINT:
        seen = joint_run(made, subject, eager.tangents)
        return grade(eager, seen, undefined=undefined, flags=False)
    if route == "aten" and attempt.sample.opened:  # not for training: docs/limits.md
        seen = forward_run(made, subject, train=False)
        seen.gradients = eager.gradients
        return grade(eager, seen, undefined=undefined, flags=False)
    if route not in INFERENCE:
        seen = forward_run(made, subject)
        if route == "foretrace.export" and attempt.unhooked:  # docs/limits.md
            seen.gradients = eager.gradients
        if route in EXPORTED:  # a torch.Size is a tuple then, as in what torch.export gives
            eager, seen = _without_sizes(eager), _without_sizes(seen)
        return grade(eager, seen, undefined=undefined)
    with torch.no_grad():  # as it was captured: some operators have other kernels then
        expected = forward_run(*_call(attempt.sample), train=False)
        seen = forward_run(made, subject, train=False)
    seen.aliases = expected.aliases  # a graph of values: what it returns is its own
    expected, seen = _without_sizes(expected), _without_sizes(seen)
    return grade(expected, seen, undefined=undefined, flags=False)


def _without_sizes(seen: Seen) -> Seen:
    return replace(seen, outputs=pytree.tree_map(lambda leaf: leaf, seen.outputs))


def _left(attempt: Attempt, eager: Seen) -> Record:
    """What is not as it was, and whether eager still gives what it gave on what was captured."""
    live, undefined, what = attempt.live, attempt.sample.undefined, ""
    try:
        facts, after = attempt.facts, facts_of(live.fn, live.args)
        changed = [path for path in facts.keys() | after if facts.get(path) != after.get(path)]
        if changed:
            return {"left": f"changed: {sorted(changed)[:3]}"}
        for _ in range(TRIES):
            fresh = attempt.sample.fresh()
            seen = forward_run(live.fn, Subject(live.fn, fresh.args, fresh.kwargs))
            status, what = grade(eager, seen, undefined=undefined)
            if status == "bitwise":
                return {}
            eager = forward_run(*_call(attempt.sample))
    except Exception as error:  # noqa: BLE001 - eager raised nothing before
        return {"left": f"eager raises {error!r:.{MESSAGE}}"}
    return {"left": f"eager differs: {what}"}


def _of_torch(route: str, error: Exception) -> bool:
    """Whether it is torch's own word: by one of its routes, or Dynamo's before it asked us."""
    inner = _from_backend(error)
    dynamos = type(error).__module__.startswith("torch._dynamo")
    return route in TORCHS or (dynamos and not isinstance(inner, foretrace.Refusal))


def _from_backend(error: Exception) -> BaseException:
    """What a backend of Dynamo's raised: a refusal makes Dynamo break the graph, or raise."""
    inner = getattr(error, "inner_exception", error.__cause__)
    return inner if isinstance(inner, foretrace.Refusal) else error


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:MESSAGE]


def failure(error: Exception, stage: str) -> Record:
    """A refusal with its kind and whether it has a line, or an error that is none."""
    refusal = _from_backend(error)
    if isinstance(refusal, foretrace.Refusal):
        status = "disguised" if refusal.kind == "program raised" else "refused"
        found = {"status": status, "kind": refusal.kind, "what": refusal.what[:MESSAGE]}
        return {
            **found,
            "stage": stage,
            **({} if refusal.at or refusal.module else {"unplaced": True}),
        }
    frames = traceback.extract_tb(error.__traceback__)
    ours = [
        f for f in frames if "/foretrace/foretrace/" in f.filename or "/foretrace/" in f.filename
    ]
    last = [f"{f.filename.removeprefix(PACKAGE_DIR)}:{f.lineno} {f.name}" for f in ours[-2:]]
    return {
        "status": "raw", "kind": type(error).__name__, "what": _words(error), "stage": stage,
        "ours": last,
    }  # fmt: skip


def warm(routes: Sequence[str] = ()) -> None:
    """What is imported and learnt on first use, before there are children."""
    x, y = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4)
    state_of()

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * y).sin().sum()

    for dynamic in (None, True):
        captured = foretrace.capture(program, (x, y), dynamic_shapes=dynamic)
        captured.cut("joint", loss=0)(x, y)
        captured.cut("export")(x, y)
        foretrace.compile(program, dynamic=dynamic, fullgraph=True)(x, y)
    if {"dynamo", "torch.compile"} & set(routes):  # it replaces functions of torch's, once
        torch.compile(program, backend="eager")(x, y)
