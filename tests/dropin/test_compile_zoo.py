"""Zoo programs through `foretrace.compile`, called twice, with and without grad, as eager."""

from collections.abc import Callable, Iterator

import pytest
import torch
from functorch.compile import default_partition

import foretrace
from tests.programs import CASES, Case
from tests.support import compare, own_leaves
from tests.support.bits import aliasing, tensors
from tests.support.subject import Snapshot, Subject
from tests.support.turns import crossed, one_in

# torch warns of this once, eager or not
pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")

ONE_NODE = {
    *("reshapes_that_do_nothing", "returned_itself_after_writes_unseen"),
    "parameter_returned_after_a_write_unseen",
}
PARTITIONED = {
    "drawn_but_not_used": "the partitioner leaves a draw out: refused",
    "drawn_over_memory_with_gaps": "torch.fx writes `random_.from`, which is no Python",
}
BACKENDS = {
    "eager": "eager",
    "graph modules": lambda gm, inputs: gm,
    "compilers": foretrace.aot_autograd(fw_compiler=lambda gm, inputs: gm),
    "partitioner": foretrace.aot_autograd(
        fw_compiler=lambda gm, inputs: gm, partition_fn=default_partition
    ),
}
WITH_GRAD = {"grad": True, "no_grad": False}
BY_NAME = [pytest.param(case, id=f"{case.section}.{name}") for name, case in CASES.items()]
WAYS = [
    pytest.param(backend, grad, id=f"{backend}-{called}")
    for backend in BACKENDS
    for called, grad in WITH_GRAD.items()
]


def run_both(case: Case, backend: object, *, grad: bool) -> list[foretrace.Recapture]:
    """Twice from the same state; the second call is answered by the capture of the first."""
    given = case.subject()
    live = given.fresh()
    compiled = foretrace.compile(live.fn, backend=backend, fullgraph=True)
    for call in ("the first call", "the second call")[: 1 if "generator" in case.name else 2]:
        fresh = given.fresh()
        ran = Subject(live.fn, fresh.args, fresh.kwargs)
        before = Snapshot.take(ran)
        wrong = list(grad_differences(given, ran, compiled, case.loss) if grad
                     else no_grad_differences(given, ran, compiled))  # fmt: skip
        before.put_back()
        compare._fail_on(call, wrong)
    return compiled.recaptures


def grad_differences(
    given: Subject, ran: Subject, compiled: Callable[..., object], loss: int | None
) -> Iterator[str]:
    eager = compare._run_eager(given.fresh(), loss, 0)
    torch.manual_seed(0)
    seen = compare._run_forward(compiled, ran, eager, loss, train=True)
    yield from compare._all_differences("export", eager, seen)


def no_grad_differences(
    given: Subject, ran: Subject, compiled: Callable[..., object]
) -> Iterator[str]:
    """The same without a backward, which eager has no more than the compiled callable."""
    sides = []
    for subject, call in ((given.fresh(), None), (ran, compiled)):
        inputs, state = subject.inputs(), subject.state()
        torch.manual_seed(0)
        with torch.no_grad():
            outputs = (call or subject.fn)(*subject.args, **subject.kwargs)
        aliases = aliasing([*inputs, *state], tensors(outputs, "output"))
        state = subject.state()
        sides.append(compare.Seen(outputs, inputs, state, aliases, [], torch.get_rng_state()))
    yield from compare._all_differences("export", *sides)


def runs_under_no_grad(case: Case) -> bool:
    """Not what hooks a tensor, or asks for a gradient."""
    given = case.subject().fresh()
    try:
        with torch.no_grad():
            given.fn(*given.args, **given.kwargs)
    except (RuntimeError, AssertionError):
        return False
    return True


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("case", "backend", "grad"), crossed(one_in(2, BY_NAME, 1), WAYS))
def test_same_as_eager(case: Case, backend: str, grad: bool) -> None:
    if not (grad or runs_under_no_grad(case)):
        pytest.skip("eager raises")
    if case.name in ONE_NODE and grad and backend != "eager":
        pytest.xfail("an input that is an output too: its gradients are added in another order")
    if case.name in PARTITIONED and grad and backend == "partitioner":
        pytest.xfail(PARTITIONED[case.name])
    if case.name in own_leaves.NAMES and grad and backend != "eager":
        own_leaves.check_refused(lambda: run_both(case, BACKENDS[backend], grad=grad))
        return
    try:
        recaptures = run_both(case, BACKENDS[backend], grad=grad)
    except foretrace.Refusal as refusal:
        if not case.may_refuse:
            raise
        pytest.xfail(f"{case.may_refuse}: {refusal}")
    assert not recaptures, [str(each) for each in recaptures]


def doubled(_module: torch.nn.Module, _args: object, out: object) -> object:
    return out * 2 if isinstance(out, torch.Tensor) and out.is_floating_point() else None


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("case", "backend", "grad"), crossed(one_in(4, BY_NAME, 3), WAYS[2:6]))
def test_same_as_eager_under_a_hook_for_all_modules(case: Case, backend: str, grad: bool) -> None:
    """A hook that changes results, which the modules of a graph must not show."""
    passes = case.name not in {*ONE_NODE, *PARTITIONED, *own_leaves.NAMES}
    if not (passes and (grad or runs_under_no_grad(case))):
        pytest.skip("another test has it")
    handle = torch.nn.modules.module.register_module_forward_hook(doubled)
    try:
        run_both(case, BACKENDS[backend], grad=grad)
    except foretrace.Refusal as refusal:
        if not (case.may_refuse or "hooks for all modules see" in str(refusal)):
            raise
        pytest.xfail(str(refusal))
    finally:
        handle.remove()
