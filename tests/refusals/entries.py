"""What only one entry point asks for: a file's contents, torch's conventions, a backend's."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from functorch.compile import default_partition
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import foretrace
from tests.refusals.asks import Calls, captures, compiles, cuts, exports
from tests.refusals.follow import captured, compiled, exported, same, trained
from tests.refusals.registry import refuses

X = torch.randn(6, 8)
W = torch.randn(6, 8, requires_grad=True)
OUTSIDE = torch.randn(6, 8, requires_grad=True)
GROWN = OUTSIDE * 2
aten = torch.ops.aten


@dataclass
class Batch:
    """Torch's pytree does not know it."""

    x: Tensor


@dataclass
class Known:
    """It knows this one."""

    x: Tensor


torch.export.register_dataclass(Known)


def of_a_batch(batch: Any) -> Tensor:  # here
    out: Tensor = batch.x * 2
    return out


def of_a_dict(batch: dict[str, Tensor]) -> Tensor:
    return batch["x"] * 2


class OfABatch(nn.Module):
    def forward(self, batch: Any) -> Tensor:  # here
        out: Tensor = batch.x * 2
        return out


refuses("unknown container", "frontends/program/export_checks.py:check_plain").when(
    exports(OfABatch(), Batch(X)), exported(OfABatch(), Known(X)), exported(of_a_dict, {"x": X})
)


class Keyless(list[Tensor]):
    """Registered, but not by which names."""


torch.utils._pytree.register_pytree_node(
    Keyless, lambda item: (list(item), None), lambda held, _: Keyless(held)
)


class Keyed(list[Tensor]):
    """Registered with them."""


torch.utils._pytree.register_pytree_node(
    Keyed, lambda item: (list(item), None), lambda held, _: Keyed(held),
    flatten_with_keys_fn=lambda item: (
        [(torch.utils._pytree.SequenceKey(i), each) for i, each in enumerate(item)], None,
    ),
)  # fmt: skip


class OfAKeyless(nn.Module):
    def forward(self, pair: Any) -> Tensor:  # here
        out: Tensor = pair[0] * pair[1]
        return out


refuses("unknown container", "frontends/program/export_checks.py:check_keys").when(
    exports(OfAKeyless(), Keyless((X, X))), exported(OfAKeyless(), Keyed((X, X)))
)


class OfAType(nn.Module):
    def forward(self, x: Tensor, kind: Any) -> Any:  # here
        return x * 2


refuses("unknown value", "frontends/program/export_checks.py:check_leaf").when(
    exports(OfAType(), X, frozenset({1})), exported(OfAType(), X, 1)
)


class Grown(nn.Module):
    def forward(self, x: Tensor) -> Tensor:  # here
        return x * GROWN


refuses("captured history", "lowering/emit/export_inputs.py:_check_history").when(
    exports(Grown(), X), exported(lambda x, y: x * y, X, GROWN.detach())
)


def asks_where_it_begins(x: Tensor) -> Tensor:
    return x * x.storage_offset()  # here


refuses("unsupported", "lowering/cuts/writeback.py:check_begins").when(
    exports(asks_where_it_begins, X[1:]),
    captured(asks_where_it_begins, X[1:]),
    exported(lambda x, begin: x * begin, X[1:], 8),
)

# ---- aot_export_module ---------------------------------------------------------------------------


def aot(module: nn.Module, *args: Any, joint: bool = True, index: Any = 0) -> Any:
    """`foretrace.aot_export_module`, later."""
    index = index if joint else None
    return lambda: foretrace.aot_export_module(
        module, args, trace_joint=joint, output_loss_index=index
    )


refuses("unknown container", "frontends/torch_compat/aot_export.py:_check_containers").when(
    aot(OfABatch(), Batch(X), joint=False),
    aot(OfABatch(), Known(X), joint=False),
    at=OfABatch.forward,
)


class Losses(nn.Module):
    """Two outputs that want a gradient."""

    def __init__(self, detached: bool = False) -> None:
        super().__init__()
        self.w, self.detached = nn.Parameter(torch.randn(8)), detached

    def forward(self, x: Tensor) -> Any:  # here
        y = x * self.w
        return y.sum(), y.detach() if self.detached else y


class Other(Losses):
    def forward(self, x: Tensor) -> Any:
        y = x * self.w  # here
        return y.sum(), y


def joint_of_other() -> None:
    assert foretrace.capture(Other(), (X,)).cut("joint", loss=0).nodes


refuses("wrong loss", "frontends/torch_compat/aot_export.py:_loss").when(
    aot(Losses(), X, index=5), aot(Losses(detached=True), X), at=Losses.forward
)
refuses("wrong loss", "frontends/torch_compat/aot_export.py:_loss").when(
    aot(Other(), X), aot(Losses(detached=True), X), at=Other.forward
)


class Reaches(nn.Module):
    """A gradient for a tensor from outside."""

    def forward(self, x: Tensor) -> Tensor:  # here
        return (x * OUTSIDE).sum()


def reached_jointly() -> None:
    assert foretrace.capture(Reaches(), (X,)).cut("joint", loss=0).nodes


refuses("captured gradient", "frontends/torch_compat/aot_export.py:_gradient_outside").when(
    aot(Reaches(), X),
    aot(Calls(lambda x, y: (x * y).sum()), X, W),
    reached_jointly,
    at=Reaches.forward,
)

COUNTER = torch.zeros(())


class Counts(nn.Module):
    """Writes to a tensor from outside."""

    def forward(self, x: Tensor) -> Tensor:
        COUNTER.add_(1)  # here
        return x * 2


class CountsInABuffer(nn.Module):
    """The same in a buffer."""

    counter: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("counter", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.counter.add_(1)
        return x * 2


refuses("side effect", "frontends/torch_compat/aot_export.py:_written").when(
    aot(Counts(), X, joint=False), aot(CountsInABuffer(), X, joint=False), at=Counts.forward
)


class Clamps(nn.Module):
    """Writes to a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.w.clamp_(-1, 1)  # here
        return (x * self.w).sum()


class ClampsAClone(Clamps):
    def forward(self, x: Tensor) -> Tensor:
        return (x * self.w.clone().clamp_(-1, 1)).sum()


refuses("mutated input", "frontends/torch_compat/aot_export.py:_written").when(
    aot(Clamps(), X), aot(ClampsAClone(), X), at=Clamps.forward
)


# ---- decompositions and rules --------------------------------------------------------------------


def activates(x: Tensor) -> Tensor:  # here
    return torch.nn.functional.gelu(x).sum()


def activates_here(x: Tensor) -> Tensor:
    return torch.nn.functional.gelu(x).sum()  # here


def opened(entry: Any) -> Any:
    table = {aten.gelu.default: entry} if callable(entry) else entry
    return cuts(activates_here, X, cut="aten", decompositions=table)


def raises(x: Tensor, *, approximate: str = "none") -> Tensor:
    raise ValueError("not this one")


def asks(x: Tensor, *, approximate: str = "none") -> Tensor:
    return x if x.sum() > 0 else -x


CONSTANT = torch.randn(8)


def reaches(x: Tensor, *, approximate: str = "none") -> Tensor:
    return x * CONSTANT


def makes_inside(x: Tensor, *, approximate: str = "none") -> Tensor:
    return x * torch.full((8,), 2.0)


without = opened({})
refuses("wrong decompositions", "lowering/cuts/decomposition_tracer.py:_checked").when(
    cuts(activates, X, cut="aten", decompositions=[1]),
    cuts(activates, X, cut="aten", decompositions=torch.export.default_decompositions()),
)
refuses("decomposition raised", "lowering/cuts/decomposition_tracer.py:_refusal").when(
    opened(raises), without, at=activates_here
)
refuses("data-dependent", "lowering/cuts/decomposition_tracer.py:answer").when(
    opened(asks), without, at=activates_here
)
refuses("wrong decompositions", "lowering/cuts/decomposition_tracer.py:lift_constant").when(
    opened(reaches), opened(makes_inside), at=activates_here
)

LIBRARY = torch.library.Library("foretrace_refused_rules", "FRAGMENT")
for name in ("none", "many", "first", "narrow", "wide"):
    LIBRARY.define(f"{name}(Tensor x) -> Tensor")
    LIBRARY.impl(name, lambda x: x * 2, "CPU")
    torch.library.register_fake(f"foretrace_refused_rules::{name}", torch.empty_like, lib=LIBRARY)
ours = torch.ops.foretrace_refused_rules
foretrace.rule(ours.many.default, backward=lambda call: (call.gradient, call.gradient))
foretrace.rule(ours.narrow.default, backward=lambda call: call.gradient[:, :2])
foretrace.rule(
    ours.wide.default,
    backward=lambda call: call.gradient.double().expand(3, *call.gradient.shape) * 2,
)


def has_many(w: Tensor) -> Tensor:
    out: Tensor = ours.many(w).sum()  # here
    return out


REACHED = torch.randn(8)
for name in ("reaches", "asks", "pair", "both"):
    results = "Tensor" if name in ("reaches", "asks") else "(Tensor, Tensor)"
    LIBRARY.define(f"{name}(Tensor x) -> {results}")
    one = results == "Tensor"
    LIBRARY.impl(name, (lambda x: x * 2) if one else (lambda x: (x * 2, x * 3)), "CPU")
    torch.library.register_fake(
        f"foretrace_refused_rules::{name}",
        torch.empty_like if one else lambda x: (torch.empty_like(x), torch.empty_like(x)),
        lib=LIBRARY,
    )
foretrace.rule(ours.reaches.default, backward=lambda call: call.gradient * REACHED)


def asks_for_data(call: Any) -> Any:
    return call.gradient * (2 if call.gradient.sum() > 0 else 3)  # here


foretrace.rule(ours.asks.default, backward=asks_for_data)
foretrace.rule(ours.pair.default, backward=lambda call: call.gradient * 2)
foretrace.rule(ours.both.default, backward=lambda call: call.grads[1] * 3)


def has_a_reaching_rule(w: Tensor) -> Tensor:
    out: Tensor = ours.reaches(w).sum()  # here
    return out


def misfitting(w: Tensor) -> Tensor:
    out: Tensor = ours.narrow(w).sum()  # here
    return out


def wider_gradient() -> None:
    found = foretrace.capture(lambda w: ours.wide(w).sum(), (W,)).cut("joint", loss=0)(W)[1]
    same(found["w"], torch.full_like(W, 6.0))


def takes_second(w: Tensor) -> Tensor:
    out: Tensor = ours.pair(w)[1].sum()  # here
    return out


def has_an_asking_rule(w: Tensor) -> Tensor:
    out: Tensor = ours.asks(w).sum()
    return out


def detaches_before(w: Tensor) -> Tensor:
    out: Tensor = (ours.asks(w.detach()) * w).sum()
    return out


def by_grads() -> None:
    cut = foretrace.capture(lambda w: ours.both(w)[1].sum(), (W,)).cut("joint", loss=0)
    same(cut(W)[1]["w"], torch.full_like(W, 3.0))


def one_gradient() -> None:
    foretrace.rule(ours.first.default, backward=lambda call: call.gradient * 2)
    found = foretrace.capture(lambda w: ours.first(w).sum(), (W,)).cut("joint", loss=0)(W)[1]
    same(found["w"], torch.full_like(W, 2.0))


refuses("wrong rule", "autograd/derivatives/registry.py:fit").when(
    cuts(has_many, W, loss=0), one_gradient
)
refuses("wrong rule", "autograd/derivatives/registry.py:_summed").when(
    cuts(misfitting, W, loss=0), wider_gradient
)


refuses("no derivative", "autograd/derivatives/formula_tracer.py:_no_lift").when(
    cuts(has_a_reaching_rule, W, loss=0), one_gradient
)
refuses("no derivative", "autograd/derivatives/formula_tracer.py:answer").when(
    cuts(has_an_asking_rule, W, loss=0), one_gradient, trained(detaches_before, W), at=asks_for_data
)
refuses("wrong rule", "autograd/derivatives/registry.py:gradient").when(
    cuts(takes_second, W, loss=0), by_grads
)

WRITTEN = torch.zeros(6, 8)


class Writes(torch.autograd.Function):
    """Writes to a tensor from outside."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        WRITTEN.copy_(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * 2


class Plain(Writes):
    """Writes nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2


def writes_inside(w: Tensor) -> Any:
    return Writes.apply(w).sum()  # here


def writes_outside(w: Tensor) -> Any:
    out = Plain.apply(w).sum()
    WRITTEN.copy_(w.detach())
    return out


refuses("autograd.Function", "lowering/cuts/function_calls.py:_refuse").when(
    cuts(writes_inside, W, cut="export"), trained(writes_inside, W), captured(writes_outside, W)
)


class Weighs(torch.autograd.Function):
    """Calls what it is given."""

    @staticmethod
    def forward(ctx: Any, fn: Callable[..., Tensor], *xs: Tensor) -> Tensor:
        return fn(*xs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return None, g, *([None] * (len(ctx.needs_input_grad) - 2))


def holds_a_tensor(w: Tensor) -> Any:
    weight = w.detach().exp()
    return Weighs.apply(lambda x: x * weight, w).sum()  # here


def gives_the_tensor(w: Tensor) -> Any:
    return Weighs.apply(torch.mul, w, w.detach().exp()).sum()


refuses("autograd.Function", "lowering/cuts/function_calls.py:_refuse").when(
    cuts(holds_a_tensor, W, cut="export"), trained(holds_a_tensor, W), captured(gives_the_tensor, W)
)


FILLED: list[float] = []


class Fills(Plain):
    """Puts something where the program has it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        FILLED.append(1.0)
        return x * 2


def fills_inside(w: Tensor) -> Any:
    return Fills.apply(w).sum()  # here


def fills_outside(w: Tensor) -> Any:
    FILLED.append(1.0)
    return Plain.apply(w).sum()


refuses("autograd.Function", "lowering/cuts/function_calls.py:_refuse").when(
    cuts(fills_inside, W, cut="export"), trained(fills_inside, W), captured(fills_outside, W)
)


def multiplies_sparse(w: Tensor) -> Tensor:
    return torch.sparse.mm(w.to_sparse(), w.T).sum()  # here


def multiplies_dense(w: Tensor) -> Tensor:
    return (w @ w.T).sum()


refuses("no derivative", "autograd/derivatives/derive.py:no_derivative").when(
    cuts(multiplies_sparse, W, loss=0), trained(multiplies_dense, W), compiled(multiplies_sparse, W)
)


class Casts(nn.Module):
    def forward(self, x: Tensor, kind: torch.dtype) -> Tensor:
        return x.to(kind)


class CastsInside(nn.Module):
    """Calls a submodule with what is no tensor and no number."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Casts()

    def forward(self, x: Tensor) -> Any:  # here
        return self.inner(x, torch.float64)


refuses("wrong call", "frontends/torch_compat/export_calls.py:_argument").when(
    exports(CastsInside(), X, preserve_module_call_signature=("inner",)), exported(CastsInside(), X)
)

# ---- backends ------------------------------------------------------------------------------------


def doubles_here(x: Tensor) -> Tensor:
    return x * 2  # here


def draws_what_nothing_reads(w: Tensor) -> Tensor:
    torch.rand(3)  # here
    return (w * 2).sum()


def uses_what_it_draws(w: Tensor) -> Tensor:
    return (w * 2).sum() + torch.rand(3).sum()


def split(**options: Any) -> Any:
    return foretrace.aot_autograd(fw_compiler=lambda module, inputs: module, **options)


def drawn_as_eager(fn: Callable[[Tensor], Tensor], backend: Any) -> Callable[[], None]:
    def follow() -> None:
        found = []
        for call in (fn, foretrace.compile(fn, backend=backend, fullgraph=True)):
            torch.manual_seed(0)
            call(X.clone().requires_grad_()).backward()
            found.append(torch.rand(3))
        assert torch.equal(*found)

    return follow


refuses("wrong backend", "lowering/partition/partitioned_halves.py:check_draws").when(
    compiles(
        draws_what_nothing_reads, X.clone().requires_grad_(),
        backend=split(partition_fn=default_partition),
    ),
    drawn_as_eager(draws_what_nothing_reads, split()),
    drawn_as_eager(uses_what_it_draws, split(partition_fn=default_partition)),
)  # fmt: skip


refuses("wrong backend", "runtime/backends/compiled_half.py:refusal").when(
    compiles(doubles_here, X, backend=lambda graph, inputs: 3),
    compiled(doubles_here, X),
    compiled(doubles_here, X, backend=lambda graph, inputs: graph),
)


LIBRARY.define("apart(Tensor x) -> Tensor")
LIBRARY.define("apart_with_a_rule(Tensor x) -> Tensor")
for name in ("apart", "apart_with_a_rule"):
    for key in ("CPU", "AutogradCPU"):
        LIBRARY.impl(name, lambda x: x * 2, key)
    torch.library.register_fake(f"foretrace_refused_rules::{name}", torch.empty_like, lib=LIBRARY)
foretrace.rule(ours.apart_with_a_rule.default, backward=lambda call: call.gradient * 2)


def is_taken_apart_by_autograd(w: Tensor) -> Tensor:
    out: Tensor = ours.apart(w)  # here
    return out.sum()


refuses("no derivative", "autograd/derivatives/autograd_run.py:forward").when(
    captures(is_taken_apart_by_autograd, W),
    trained(lambda w: ours.apart_with_a_rule(w).sum(), W),
    trained(lambda w: (w * 2).sum(), W),
)


def doubles(x: Tensor) -> Tensor:  # here
    return x * 2


def captures_under_a_fake_mode() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        foretrace.capture(doubles, (X,))


refuses("unsupported", "session/run/run.py:record").when(
    captures_under_a_fake_mode, captured(doubles, X), at=doubles
)


SPOKEN = (
    torch.zeros(10, 2, 5), torch.ones(2, 4, dtype=torch.long),
    torch.tensor([10, 10]), torch.tensor([4, 3]),
)  # fmt: skip


def aligns(x: Tensor, targets: Tensor, heard: Tensor, said: Tensor) -> Tensor:
    return torch.nn.functional.ctc_loss(x, targets, heard, said)  # here


def aligns_outside(x: Tensor) -> Tensor:
    return x.log_softmax(-1)


refuses("data-dependent", "runtime/backends/compilers.py:_check_sizes").when(
    compiles(aligns, *SPOKEN, backend="inductor"),
    compiled(aligns, *SPOKEN),
    compiled(aligns_outside, SPOKEN[0], backend="inductor"),
)


class Trains(nn.Module):
    """A step: its backward adds to what stays after the call."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        loss = self.net(x).sum()
        loss.backward()  # here
        return loss.detach()


class GivesItsGradients(Trains):
    def forward(self, x: Tensor) -> Any:
        loss = self.net(x).sum()
        return loss.detach(), torch.autograd.grad(loss, list(self.net.parameters()))


def step_by_compile() -> None:
    step = Trains()
    same(foretrace.compile(step)(X), step.net(X).sum().detach())


refuses("autograd inside", "operators/abstract_tensors/abstract_tensor.py:_gradient").when(
    exports(Trains(), X), exported(GivesItsGradients(), X), step_by_compile, at=Trains.forward
)
