"""Values that do not exist yet, random numbers, and operators without an answer."""

import importlib
import math
import random
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo._trace_wrapped_higher_order_op import trace_wrapped
from torch._higher_order_ops.out_dtype import out_dtype
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.strict_mode import strict_mode
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import foretrace
from tests.refusals.asks import captures, compiles, cuts, exports
from tests.refusals.follow import (
    as_a_cut,
    captured,
    compiled,
    drawn,
    exported,
    guarded,
    same,
    trained,
)
from tests.refusals.registry import EXCUSED, refuses

X = torch.randn(6, 8)


def agrees_so_far(x: Tensor) -> Tensor:
    return x.new_empty((), dtype=torch.bool)


LIBRARY = torch.library.Library("foretrace_refused", "FRAGMENT")
LIBRARY.define("opaque(Tensor x) -> Tensor")
LIBRARY.impl("opaque", lambda x: x + 1, "CPU")
LIBRARY.define("known(Tensor x) -> Tensor")
LIBRARY.define("agrees(Tensor x) -> bool")
LIBRARY.impl("agrees", lambda x: bool((x < 9).all()), "CPU")
LIBRARY.define("agreement(Tensor x) -> Tensor")
LIBRARY.impl("agreement", lambda x: (x < 9).all(), "CPU")
LIBRARY.impl("known", lambda x: x + 1, "CPU")
torch.library.register_fake("foretrace_refused::agreement", agrees_so_far, lib=LIBRARY)
torch.library.register_fake("foretrace_refused::known", torch.empty_like, lib=LIBRARY)


def branches(x: Tensor) -> Tensor:
    if x.sum() > 0:  # here
        return x + 1
    return x - 1


def chooses(x: Tensor) -> Tensor:
    return torch.where(x.sum() > 0, x + 1, x - 1)


def given_the_answer(x: Tensor, positive: bool) -> Tensor:
    return x + 1 if positive else x - 1


POSITIVE = bool(X.sum() > 0)
refuses("data-dependent", "tracer/concrete/unknown_values.py:depends_on_inputs").when(
    captures(branches, X, values="refuse"),
    captured(chooses, X),
    captured(given_the_answer, X, POSITIVE),
    captured(branches, X),
)
refuses("data-dependent", "tracer/concrete/unknown_values.py:depends_on_inputs").when(
    exports(branches, X, values="refuse"),
    exported(chooses, X),
    exported(given_the_answer, X, POSITIVE),
    guarded(branches, X),
)


def asks_an_operator(x: Tensor) -> Tensor:
    return x if torch.ops.foretrace_refused.agrees(x) else -x  # here


def asks_its_tensor(x: Tensor) -> Tensor:
    return x if torch.ops.foretrace_refused.agreement(x) else -x


refuses("data-dependent", "frontends/program/other_graphs.py:warn_guarded").when(
    exports(asks_an_operator, X), guarded(asks_its_tensor, X)
)


def halves(x: Tensor) -> Tensor:
    while x.sum() > 1:  # here
        x = x / 2
    return x


def halves_at_once(x: Tensor) -> Tensor:
    return x / 2 ** torch.log2(x.sum()).ceil().clamp(min=0)


def halves_so_often(x: Tensor, times: int) -> Tensor:
    return x / 2**times


def of_many_lengths(fn: Callable[[Tensor], Tensor]) -> Callable[[], None]:
    """Calls of which each loops once more than the one before."""

    def call() -> None:
        called = foretrace.compile(fn, fullgraph=True)
        with warnings.catch_warnings(action="ignore"):
            for times in range(67):
                same(called(torch.tensor([2.0**times])), fn(torch.tensor([2.0**times])))

    return call


refuses("changing answers", "runtime/calls/recapture.py:check_answers").when(
    of_many_lengths(halves),
    of_many_lengths(halves_at_once),
    compiled(halves_so_often, X, 3),
    at=halves,
)


def scales(x: Tensor) -> Tensor:
    return x * (x * 1j).sum().item()  # here


def scales_by_a_tensor(x: Tensor) -> Tensor:
    return x * (x * 1j).sum()


def scales_by_a_number(x: Tensor, factor: complex) -> Tensor:
    return x * factor


FACTOR = (X * 1j).sum().item()
for ask, follow in (
    (captures(scales, X), captured), (captures(scales, X, values="refuse"), captured),
    (compiles(scales, X), compiled),
):  # fmt: skip
    refuses("data-dependent", "tracer/concrete/unknown_values.py:depends_on_inputs").when(
        ask, follow(scales_by_a_tensor, X), follow(scales_by_a_number, X, FACTOR), at=scales
    )
refuses("data-dependent", "tracer/concrete/unknown_values.py:depends_on_inputs").when(
    exports(scales, X),
    exported(scales_by_a_tensor, X),
    exported(lambda x, factor: x * factor, X, torch.tensor(FACTOR)),
)


def takes_its_exponential(x: Tensor) -> Tensor:
    return x * math.exp(x.sum().item())  # here


def takes_the_tensors_exponential(x: Tensor) -> Tensor:
    return x * x.sum().exp().item()


refuses("unsupported", "lowering/cuts/scalar_ops.py:in_file").when(
    exports(takes_its_exponential, X), exported(takes_the_tensors_exponential, X)
)


def adds_by_a_number(x: Tensor) -> Tensor:
    return torch.addmm(x, x, x.t(), beta=x.mean().item())  # here


def adds_by_a_tensor(x: Tensor) -> Tensor:
    return x * x.mean() + x @ x.t()


SQUARE = torch.randn(4, 4)
refuses("data-dependent", "runtime/backends/scalar_custom_op.py:numbers_refused").when(
    compiles(adds_by_a_number, SQUARE, backend="inductor"),
    compiled(adds_by_a_number, SQUARE),
    captured(adds_by_a_tensor, SQUARE),
    at=None,
)


def gives_a_number(x: Tensor) -> tuple[Tensor, float]:
    total = x.sum().item()  # here
    return x * total, total


def gives_a_tensor(x: Tensor) -> tuple[Tensor, Tensor]:
    total = x.sum()
    return x * total.item(), total


def divides_by_a_count(x: Tensor) -> Tensor:
    return x * (1 / (x > 0).sum().item())  # here


def divides_by_a_float(x: Tensor) -> Tensor:
    return x * (1 / float((x > 0).sum().item()))


AS_TENSORS: dict[str, Any] = {"cut": "step", "numbers": "tensors"}
for number, tensor, args in (
    (takes_its_exponential, takes_the_tensors_exponential, (X,)),
    (adds_by_a_number, adds_by_a_tensor, (SQUARE,)),
    (gives_a_number, gives_a_tensor, (X,)),
    (divides_by_a_count, divides_by_a_float, (torch.arange(4.0),)),
):
    refuses("unsupported", "lowering/cuts/scalar_ops.py:refuse").when(
        cuts(number, *args, **AS_TENSORS),
        as_a_cut(tensor, *args, **AS_TENSORS),
        as_a_cut(number, *args),
    )


@torch.library.custom_op("foretrace_tests::of_eager_alone", mutates_args=())
def of_eager_alone(x: Tensor) -> Tensor:
    """Has a rule that a compiler cannot use."""
    return x.sin()


@of_eager_alone.register_fake
def _(x: Tensor) -> Tensor:
    if any("_inductor" in frame.filename for frame in traceback.extract_stack()):
        raise ArithmeticError("no rule here")
    return torch.empty_like(x)


def calls_of_eager_alone(x: Tensor) -> Tensor:
    return of_eager_alone(x) + 1  # here


refuses("compiler", "runtime/backends/compiled_half.py:refusal").when(
    compiles(calls_of_eager_alone, X, backend="inductor"),
    compiled(calls_of_eager_alone, X),
    "a backend that compiles the operator, or another operator",
)


def raises_to_nothing(x: Tensor) -> Tensor:
    return (x ** (x - x).detach().sum().item()).sum()  # here


def raises_to_a_tensor(x: Tensor) -> Tensor:
    return (x ** (x - x).detach().sum()).sum()


FOLLOWED = torch.ones(3, requires_grad=True)
refuses("data-dependent", "ir/symbols/sym_float.py:asked_number").when(
    cuts(raises_to_nothing, FOLLOWED, loss=0), trained(raises_to_a_tensor, FOLLOWED), at=None
)


def scales_one_side(x: Tensor) -> Tensor:
    number = x.sum().item()
    return x * number if number > 2 else x - number  # here


def reads_it_on_each_side(x: Tensor) -> Tensor:
    total = x.sum()
    return x * total.item() if total.item() > 2 else x - total.item()


refuses("both sides", "session/both_branches/cond.py:refused").when(
    captures(scales_one_side, X, branches="both"),
    captured(reads_it_on_each_side, X),
    captured(scales_one_side, X),
)


def gathers_numbers(x: Tensor) -> Tensor:
    return x.mul(torch.tensor([x.sum(), x.max()])[0])  # here


def gathers_tensors(x: Tensor) -> Tensor:
    return x.mul(torch.stack([x.sum(), x.max()])[0])


def is_given_them(x: Tensor, both: Tensor) -> Tensor:
    return x.mul(both[0])


for ask, follow in (
    (captures(gathers_numbers, X), captured), (compiles(gathers_numbers, X), compiled),
    (exports(gathers_numbers, X), exported),
):  # fmt: skip
    refuses("data-dependent", "tracer/recorder/error_reports.py:_reads_memory").when(
        ask,
        follow(gathers_tensors, X),
        follow(is_given_them, X, torch.stack([X.sum(), X.max()])),
        "a program that raises in eager",
        at=gathers_numbers,
    )


def branches_on_chance(x: Tensor) -> Tensor:
    return x if torch.rand(()) > 0.5 else -x  # here


def chooses_by_chance(x: Tensor) -> Tensor:
    return torch.where(torch.rand(()) > 2, x, -x)


refuses("data-dependent", "tracer/concrete/unknown_values.py:depends_on_inputs").when(
    captures(branches_on_chance, X, values="refuse"),
    captured(chooses_by_chance, X),
    captured(given_the_answer, X, POSITIVE),
    drawn(branches_on_chance, X),
)


def asks_a_large_constant(x: Tensor) -> Tensor:
    return x if torch.arange(2**25)[-1] > 0 else -x  # here


def asks_a_small_constant(x: Tensor) -> Tensor:
    return x if torch.arange(2**9)[-1] > 0 else -x


refuses("data-dependent", "tracer/concrete/unknown_values.py:check_size").when(
    captures(asks_a_large_constant, X), captured(asks_a_small_constant, X)
)


def selects(x: Tensor) -> Tensor:
    return x[x > 0].sum()  # here


def masks(x: Tensor) -> Tensor:
    return (x * (x > 0)).sum()


refuses("data-dependent", "operators/inference/cpu_kernels.py:depends_on_data").when(
    captures(selects, X, values="refuse"), captured(masks, X), captured(selects, X)
)


def divides_by_a_tensor_of_numbers(x: Tensor) -> list[Tensor]:
    numbers = torch.tensor([1.0])
    torch._foreach_addcdiv_([y := x * 1], [x], [x + 9], numbers)  # here
    return [y]


def divides_by_numbers(x: Tensor) -> list[Tensor]:
    torch._foreach_addcdiv_([y := x * 1], [x], [x + 9], [1.0])
    return [y]


if torch.__version__ < "2.15":  # whose kernel reads them as it runs
    refuses("data-dependent", "operators/inference/infer.py:_reads_numbers").when(
        captures(divides_by_a_tensor_of_numbers, X), captured(divides_by_numbers, X)
    )
else:
    EXCUSED["operators/inference/infer.py:_reads_numbers"] = (
        "no operator of torch 2.15 is known to come there"
    )


def leaves_for_numpy(x: Tensor) -> Tensor:
    return x * x.numpy().max()  # here


def stays(x: Tensor) -> Tensor:
    return x * x.max()


refuses("data-dependent", "operators/abstract_tensors/tensor_methods.py:method").when(
    captures(leaves_for_numpy, X), captured(stays, X)
)


def calls_an_opaque_op(x: Tensor) -> Tensor:
    return torch.ops.foretrace_refused.opaque(x)  # here


def calls_a_known_op(x: Tensor) -> Tensor:
    return torch.ops.foretrace_refused.known(x)


refuses("no meta kernel", "operators/inference/fake_kernels.py:no_meta_kernel").when(
    captures(calls_an_opaque_op, X), captured(calls_a_known_op, X)
)


# ---- random numbers ------------------------------------------------------------------------------


def seeds(x: Tensor) -> Tensor:
    torch.manual_seed(0)  # here
    return x * 2


def does_not_seed(x: Tensor) -> Tensor:
    return x * 2


refuses("side effect", "session/patches/rng.py:_no_seed").when(
    captures(seeds, X), captured(does_not_seed, X)
)


def makes_a_generator(x: Tensor) -> Tensor:
    return x + torch.rand(8, generator=torch.Generator().manual_seed(0))  # here


def takes_numbers(x: Tensor, numbers: Tensor) -> Tensor:
    return x + numbers


refuses("side effect", "session/patches/rng.py:__call__").when(
    captures(makes_a_generator, X), captured(takes_numbers, X, torch.rand(8))
)


def draws_in_python(x: Tensor) -> Tensor:
    return x * random.random()  # here


refuses("side effect", "session/patches/rng.py:_drawn").when(
    captures(draws_in_python, X), captured(scales_by_a_number, X, 0.25)
)
refuses("side effect", "session/patches/rng.py:_drawn").when(
    compiles(draws_in_python, X), compiled(scales_by_a_number, X, 0.25)
)


# ---- operators that hold programs, tracers, what torch cannot run --------------------------------


def gives_back(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, torch.sin, lambda y: y, (x,))  # here


def gives_clone(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, torch.sin, torch.clone, (x,))


HOLDS = "tracer/higher_order/trace_subgraph.py:refuse"
refuses("higher-order operator", HOLDS).when(captures(gives_back, X), captured(gives_clone, X))
refuses("higher-order operator", HOLDS).when(compiles(gives_back, X), compiled(gives_clone, X))
refuses("higher-order operator", HOLDS).when(exports(gives_back, X), exported(gives_clone, X))


def writes_outside(x: Tensor) -> Tensor:
    y = x * 2
    return torch.cond(x.sum() > 0, lambda: y.add_(1) + 1, lambda: y + 1, ())  # here


def writes_inside(x: Tensor) -> Tensor:
    y = x * 2
    return torch.cond(x.sum() > 0, lambda: y.clone().add_(1) + 1, lambda: y + 1, ())


refuses("higher-order operator", HOLDS).when(
    captures(writes_outside, X), captured(writes_inside, X)
)


def of_two_dtypes(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, torch.sin, lambda y: y > 0, (x,))  # here


def of_one_dtype(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, torch.sin, lambda y: (y > 0).float(), (x,))


refuses("higher-order operator", HOLDS).when(captures(of_two_dtypes, X), captured(of_one_dtype, X))


def carries_another(x: Tensor) -> Tensor:
    more: Any = while_loop(lambda y: y.sum() < 9, lambda y: (y.double() + 1,), (x,))  # here
    return more[0]  # type: ignore[no-any-return]


def carries_the_same(x: Tensor) -> Tensor:
    more: Any = while_loop(lambda y: y.sum() < 9, lambda y: (y + 1,), (x,))
    return more[0]  # type: ignore[no-any-return]


refuses("higher-order operator", HOLDS).when(
    captures(carries_another, X), captured(carries_the_same, X)
)


def counts_in_python(x: Tensor) -> Tensor:
    more: Any = while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y + 1), (0, x))  # here
    return more[1]  # type: ignore[no-any-return]


def counts_in_a_tensor(x: Tensor) -> Tensor:
    more: Any = while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y + 1), (torch.tensor(0), x))
    return more[1]  # type: ignore[no-any-return]


refuses("higher-order operator", HOLDS).when(
    captures(counts_in_python, X), captured(counts_in_a_tensor, X)
)


def casts_inside(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return torch.cond(x.sum() > 0, lambda: x @ w, lambda: (x @ w) * 2, ())  # here


def casts_in_the_program(x: Tensor, w: Tensor) -> Tensor:
    def on() -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ w

    def off() -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (x @ w) * 2

    return torch.cond(x.sum() > 0, on, off, ())


LEAF = torch.randn(8, 8, requires_grad=True)
refuses("higher-order operator", HOLDS).when(
    captures(casts_inside, X, LEAF), captured(casts_in_the_program, X, LEAF)
)


ROUNDS = "autograd/higher_order/scan_backward.py:_no_derivative"
WANTED = torch.ones(3, requires_grad=True)


def looped(x: Tensor) -> Tensor:
    def loop(x: Tensor) -> Tensor:
        more: Any = while_loop(lambda y: y.sum() < 9, lambda y: (y + 1,), (x * 1,))  # here
        return more[0].sum()  # type: ignore[no-any-return]

    return torch.cond(x.sum() > 0, loop, lambda x: x.cos().sum(), (x,))


def looped_unseen(x: Tensor) -> Tensor:
    with torch.no_grad():
        seen = looped(x)
    return seen * x.sum()


def looped_in_python(x: Tensor) -> Tensor:
    for _ in range(3):
        x = x + 1
    return x.sum()


refuses("no derivative", ROUNDS).when(
    cuts(looped, WANTED), trained(looped_unseen, WANTED), trained(looped_in_python, WANTED)
)


def doubles(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    return carry * 2 + row, carry.clone()


def scans_turned(x: Tensor) -> Tensor:
    last: Any = scan(doubles, x.view(2, 4).t(), x.view(1, 4, 2))[0]  # here
    return last.sum()  # type: ignore[no-any-return]


def scans_straight(x: Tensor) -> Tensor:
    last: Any = scan(doubles, x.view(2, 4).t().contiguous(), x.view(1, 4, 2))[0]
    return last.sum()  # type: ignore[no-any-return]


HELD = "tracer/higher_order/trace_hop.py:hold"


def attends(q: Tensor, table: Tensor) -> Tensor:
    def mask(b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
        return table[m] >= table[n]

    made = create_block_mask(mask, None, None, 16, 16, device="cpu")
    out: Any = flex_attention(q, q, q, None, made)  # here
    return out


def attends_unfollowed(q: Tensor, table: Tensor) -> Tensor:
    return attends(q, table.detach())


def wraps_a_trace(x: Tensor) -> Tensor:
    return trace_wrapped(x, fn=torch.sin)  # here


def casts_what_it_gives(x: Tensor) -> Tensor:
    return out_dtype(torch.ops.aten.mul.Tensor, torch.float64, x, x).sum()  # here


def cast_unfollowed(x: Tensor) -> Tensor:
    with torch.no_grad():
        given = casts_what_it_gives(x)
    return x.sum() * given


def cast_by_a_method(x: Tensor) -> Tensor:
    return (x * x).to(torch.float64).sum()


def fuses_what_follows(x: Tensor) -> Tensor:
    flex_gemm = importlib.import_module("torch._higher_order_ops.flex_gemm").flex_gemm
    return flex_gemm(torch.mm, (x[:, None], x[None]), torch.relu).sum()  # here


def fused_unfollowed(x: Tensor) -> Tensor:
    with torch.no_grad():
        given = fuses_what_follows(x)
    return x.sum() * given


def followed_apart(x: Tensor) -> Tensor:
    return torch.relu(x[:, None] @ x[None]).sum()


def calls_strictly(x: Tensor) -> Tensor:
    made: Any = strict_mode(lambda y: (y.sin(),), (x,))  # here
    return made[0].sum()  # type: ignore[no-any-return]


def calls_strictly_unfollowed(x: Tensor) -> Tensor:
    with torch.no_grad():
        given = calls_strictly(x)
    return x.sum() * given


def calls(x: Tensor) -> Tensor:
    return x.sin().sum()


def quietly(ask: Callable[[], object]) -> Callable[[], object]:
    """Without torch's warnings: that nothing is compiled, or that Dynamo asks for `.grad`."""

    def quiet() -> object:
        with warnings.catch_warnings(action="ignore"):
            return ask()

    return quiet


EIGHT = torch.randn(8, requires_grad=True)
refuses("no derivative", "autograd/higher_order/scan_backward.py:_begun").when(
    cuts(scans_turned, EIGHT), quietly(trained(scans_straight, EIGHT))
)
Q = torch.randn(1, 2, 16, 16)
HALF = torch.randn(1, 2, 16, 16, dtype=torch.float16)


def casts_scores(q: Tensor) -> Tensor:
    def score(s: Tensor, b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
        return s.to(torch.float16) * 0.5  # here

    return flex_attention(q, q, q, score)  # type: ignore[return-value]


def halves_scores(q: Tensor) -> Tensor:
    return flex_attention(q, q, q, lambda s, b, h, m, n: s * 0.5)  # type: ignore[return-value]


refuses("higher-order operator", HOLDS).when(
    quietly(captures(casts_scores, HALF)),
    quietly(captured(halves_scores, HALF)),
    quietly(captured(casts_scores, HALF.float())),
    at=casts_scores,
)
TABLE = torch.arange(16.0, requires_grad=True)
refuses("higher-order operator", HOLDS).when(
    quietly(captures(attends, Q, TABLE)),
    quietly(captured(attends_unfollowed, Q, TABLE)),
    at=attends,
)
refuses("higher-order operator", HELD).when(captures(wraps_a_trace, X), captured(torch.sin, X))
refuses("higher-order operator", "tracer/higher_order/trace_hop.py:_inline").when(
    captures(casts_what_it_gives, WANTED),
    trained(cast_unfollowed, WANTED),
    trained(cast_by_a_method, WANTED),
)
if hasattr(torch.ops.higher_order, "flex_gemm"):
    refuses("higher-order operator", "tracer/higher_order/trace_hop.py:_inline").when(
        captures(fuses_what_follows, WANTED),
        trained(fused_unfollowed, WANTED),
        trained(followed_apart, WANTED),
    )
refuses("no derivative", "autograd/higher_order/scan_backward.py:differentiate").when(
    cuts(calls_strictly, WANTED), trained(calls, WANTED), trained(calls_strictly_unfollowed, WANTED)
)


def traces(x: Tensor) -> Tensor:
    made: Tensor = torch.jit.trace(lambda y: y * 2, (x,))(x)  # here
    return made


refuses("unsupported", "tracer/recorder/error_reports.py:_traces").when(
    captures(traces, X), captured(does_not_seed, X)
)


def multiplies_wrong_shapes(x: Tensor) -> Tensor:
    return x @ x  # here


refuses("program raised", "tracer/recorder/error_reports.py:_refusal").when(
    captures(multiplies_wrong_shapes, X),
    captured(lambda x: x @ x.T, X),
    "tests/refusals/state.py follows it for what a first call stores",
)


def quantizes(x: Tensor) -> Tensor:
    return torch.quantize_per_tensor(x, 0.1, 0, torch.quint8).dequantize()  # here


def quantizes_in_floats(x: Tensor) -> Tensor:
    return torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255)


refuses(
    "unsupported tensor", "operators/abstract_tensors/supported_inputs.py:check_asked_for"
).when(captures(quantizes, X), captured(quantizes_in_floats, X))

ROWS = torch.export.Dim("rows")


def fixes_a_size(x: Tensor) -> Tensor:
    return x * len("-" * x.shape[0])  # here


refuses("dynamic size fixed", "ir/symbols/input_symbols.py:check").when(
    captures(fixes_a_size, X, dynamic_shapes={"x": {0: ROWS}}), captured(fixes_a_size, X)
)


def sums(x: Tensor) -> Tensor:  # here
    return x.sum(0)


refuses("dynamic size fixed", "ir/symbols/input_symbols.py:_constant_size").when(
    captures(sums, X[:1], dynamic_shapes={"x": {0: ROWS}}),
    captured(sums, X, dynamic_shapes={"x": {0: ROWS}}),
)
refuses("unsupported tensor", "operators/abstract_tensors/supported_inputs.py:check_admitted").when(
    captures(sums, X.to_sparse().requires_grad_()), captured(sums, X.to_sparse().to_dense())
)


def takes_scripted(x: Tensor) -> Tensor:  # here
    made: Tensor = SCRIPTED(x)
    return made


SCRIPTED = torch.jit.trace(torch.nn.Linear(8, 8), (X,))
PLAIN = torch.nn.Linear(8, 8)
refuses("unsupported module", "python_state/effects/module_state.py:scripted").when(
    captures(takes_scripted, X), captured(PLAIN, X)
)
