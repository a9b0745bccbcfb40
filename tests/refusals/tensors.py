"""Tensors that no graph has a place for, and writes that have no form as values."""

import copy
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import foretrace
from tests.refusals.asks import captures, compiles, exports
from tests.refusals.follow import captured, compiled, exported, same, trained
from tests.refusals.registry import refuses
from tests.support.compare import same_as_eager

X = torch.randn(6, 8)
FOLLOWED = torch.randn(8, requires_grad=True)
Q, MASK = torch.randn(1, 2, 16, 16), torch.zeros(16, 16)


class Logged(torch.Tensor):
    """A class of the user's."""


def makes_a_class_of_its_own(x: Tensor) -> Tensor:
    return Logged(x) * 2  # here


def makes_none(x: Tensor) -> Tensor:
    return x * 2


refuses("unsupported tensor", "operators/abstract_tensors/supported_inputs.py:makes_subclass").when(
    captures(makes_a_class_of_its_own, X), captured(makes_none, X)
)


def chooses_of_a_class(x: Tensor) -> Tensor:
    return x[x > 0] * 2  # here


def chooses(x: Tensor) -> Tensor:
    plain = x.as_subclass(Tensor)
    return plain[plain > 0] * 2


refuses("unsupported tensor", "operators/abstract_tensors/class_instances.py:shown_as").when(
    captures(chooses_of_a_class, X.as_subclass(Logged)),
    captured(chooses, X.as_subclass(Logged)),
    captured(makes_none, X.as_subclass(Logged)),
)


def turns_in_place(x: Tensor) -> Any:
    y = x + 1
    y.unsqueeze_(0)  # here
    return y.shape


def turns(x: Tensor) -> Any:
    return (x + 1).unsqueeze(0).shape


refuses("unsupported tensor", "operators/abstract_tensors/abstract_tensor.py:become_like").when(
    captures(turns_in_place, X.as_subclass(Logged)), captured(turns, X.as_subclass(Logged))
)


def makes_another_layout(x: Tensor) -> Tensor:
    return torch.zeros_like(x, layout=torch._mkldnn).to_dense() + x  # here


def makes_entries(x: Tensor) -> Tensor:
    places = torch.tensor([[0], [2]])
    return torch.sparse_coo_tensor(places, x[0, :1], (3, 8)) @ x.T


def sums_sparse(a: Tensor) -> Tensor:  # here
    return torch.sparse.sum(a)


def sums_dense(a: Tensor) -> Tensor:
    return a.sum()


SPARSE = X.relu().to_sparse()
with warnings.catch_warnings(action="ignore"):  # that it is in beta state
    ROWS = SPARSE.to_sparse_csr()
refuses(
    "unsupported tensor", "operators/abstract_tensors/supported_inputs.py:check_sparse_here"
).when(
    captures(sums_sparse, SPARSE, target="cuda"),
    captured(sums_dense, SPARSE.to_dense()),
    captured(sums_sparse, SPARSE),
)


def multiplies(a: Tensor, x: Tensor) -> Tensor:
    return a @ x  # here


TALL = X.T.clone()
refuses("unsupported tensor", "runtime/backends/compilers.py:_check_dense").when(
    compiles(multiplies, SPARSE, TALL, backend="inductor"),
    compiled(multiplies, SPARSE, TALL),
    compiled(multiplies, SPARSE.to_dense(), TALL),
)
refuses("unsupported tensor", "runtime/backends/compilers.py:_check_dense").when(
    compiles(multiplies, ROWS, TALL, backend="inductor"),
    compiled(multiplies, ROWS, TALL),
    compiled(multiplies, SPARSE.to_dense(), TALL),
)


def among(x: Tensor, kept: Any) -> Tensor:  # here
    return x * 2 if any(x is each for each in kept) else x * 3


refuses("aliased inputs", "session/run/aliased_inputs.py:check_no_set_of_inputs").when(
    captures(among, X, {X}), captured(among, X, [X])
)


def writes_sparse(a: Tensor, x: Tensor) -> Tensor:
    a.mul_(2)  # here
    return a @ x


def makes_sparse(a: Tensor, x: Tensor) -> Tensor:
    return (a * 2) @ x


refuses("side effect", "session/run/mutations.py:_not_written_back").when(
    captures(writes_sparse, SPARSE.clone(), X.T.clone()),
    captured(makes_sparse, SPARSE, X.T.clone()),
)
refuses("side effect", "session/run/mutations.py:_not_written_back").when(
    captures(writes_sparse, ROWS.clone(), X.T.clone()), captured(makes_sparse, ROWS, X.T.clone())
)


refuses("unsupported tensor", "operators/abstract_tensors/sparse_layouts.py:of_layout").when(
    captures(makes_another_layout, X), captured(makes_entries, X)
)


def has_no_entries(x: Tensor) -> Tensor:
    return x * torch.zeros((), layout=torch.sparse_coo).to_dense()  # here


refuses("unsupported tensor", "operators/abstract_tensors/sparse_layouts.py:of_layout").when(
    captures(has_no_entries, X), captured(makes_entries, X)
)


def puts_together_what_does_not_fit(x: Tensor) -> Tensor:
    places = torch.tensor([0, 1, 1]), torch.tensor([2])
    return torch.sparse_csr_tensor(*places, x[:1, :1], (2, 8)).to_dense()  # here


def puts_together_what_fits(x: Tensor) -> Tensor:
    places = torch.tensor([0, 1, 1]), torch.tensor([2])
    return torch.sparse_csr_tensor(*places, x[0, :1], (2, 8)).to_dense()


def gets_it(a: Tensor) -> Tensor:
    return a.to_dense()


refuses("unsupported tensor", "operators/inference/sparse_ops.py:_unfit").when(
    captures(puts_together_what_does_not_fit, X),
    captured(puts_together_what_fits, X),
    captured(gets_it, ROWS),
)


def resizes_an_out(x: Tensor) -> Tensor:
    out = torch.empty(3)
    view = out[1:]
    torch.mul(x, 2, out=view)  # here
    return out


def leaves_out_away(x: Tensor) -> Tensor:
    return torch.mul(x, 2)


refuses("side effect", "tracer/functionalization/out_variants.py:_renew").when(
    captures(resizes_an_out, X), captured(leaves_out_away, X)
)


def resizes_a_history(x: Tensor) -> Tensor:
    room = x[0] * FOLLOWED
    with torch.no_grad():
        torch.exp(x, out=room)  # here
    return room.detach()


def leaves_the_history_away(x: Tensor) -> Tensor:
    return torch.exp(x)


refuses("unsupported", "tracer/functionalization/out_variants.py:_renew").when(
    captures(resizes_a_history, X), captured(leaves_the_history_away, X)
)


def resizes(x: Tensor) -> Tensor:
    return (x * 2).resize_(3, 4)  # here


def slices(x: Tensor) -> Tensor:
    return (x * 2).reshape(-1)[:12].reshape(3, 4)


refuses("no functional form", "tracer/functionalization/out_variants.py:resize").when(
    captures(resizes, X), captured(slices, X)
)


def writes_bits(x: Tensor) -> Tensor:
    y = x * 2
    y.as_strided((2,), (1,)).view(torch.int32).zero_()  # here
    return y


def writes_numbers(x: Tensor) -> Tensor:
    y = x * 2
    y.as_strided((2,), (1,)).zero_()
    return y


refuses("no functional form", "operators/schemas/view_inverse.py:_put_by_place").when(
    captures(writes_bits, X), captured(writes_numbers, X)
)


def writes_through_strides(x: Tensor) -> Tensor:
    y = (x * 2).t()[::2].clone(memory_format=torch.preserve_format)
    y = torch.empty_strided((4, 6), (1, 5)).copy_(y)
    y.as_strided((2,), (1,)).zero_()  # here
    return y


def writes_through_strides_of_rows(x: Tensor) -> Tensor:
    y = (x * 2).t()[::2].contiguous()
    y.as_strided((2,), (1,)).zero_()
    return y


refuses("no functional form", "operators/schemas/view_inverse.py:_check_contiguous").when(
    captures(writes_through_strides, X), captured(writes_through_strides_of_rows, X)
)


def raises_with_a_tensor(x: Tensor) -> Tensor:
    raise KeyError(x * 2)


def left_behind() -> Tensor:
    """A tensor of a run that was refused: its error has it."""
    with pytest.raises(foretrace.Refusal) as caught:
        foretrace.capture(raises_with_a_tensor, (X,))
    error: Any = caught.value.__cause__
    found: Tensor = error.args[0]
    return found


def uses_in_eager() -> Tensor:
    left = left_behind()
    return left + 1  # here


def multiplies(x: Tensor, y: Tensor) -> Tensor:
    return x * y  # here


def from_a_cut() -> None:
    made = foretrace.capture(makes_none, (X,)).cut("export")(X)
    same(made + 1, makes_none(X) + 1)


def in_another_thread(x: Tensor) -> Tensor:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            x + 1  # here
        except foretrace.Refusal as refusal:
            errors.append(refusal)

    other = threading.Thread(target=run)
    other.start()
    other.join()
    raise errors[0]


OUTSIDE = "operators/abstract_tensors/tensor_methods.py:escaped"
refuses("escaped", OUTSIDE).when(
    uses_in_eager, from_a_cut, captured(makes_none, X), at=uses_in_eager
)
refuses("escaped", OUTSIDE).when(
    captures(in_another_thread, X), from_a_cut, captured(makes_none, X)
)


class Uses(torch.nn.Module):
    """Uses what an earlier capture left."""

    def __init__(self, left: Tensor) -> None:
        super().__init__()
        self.left = left

    def forward(self, x: Tensor) -> Tensor:
        return x * self.left  # here


refuses("escaped", "tracer/functionalization/alias.py:value").when(
    captures(Uses(left_behind()), X), captured(Uses(X * 2), X)
)


def differs_in_dtype(q: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, q, q.double())  # here


def is_of_one_dtype(q: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, q, q)


refuses("wrong call", "operators/targets/sdpa.py:_wrong").when(
    captures(differs_in_dtype, Q, target="cuda:sm80"), captured(is_of_one_dtype, Q)
)


def loses_by_class(x: Tensor) -> Tensor:
    targets = torch.ones(4, dtype=torch.int32, device=x.device)
    return F.ctc_loss(x.log_softmax(-1), targets, (6, 6), (2, 2))  # here


def loses_by_class_of_int64(x: Tensor) -> Tensor:
    targets = torch.ones(4, dtype=torch.int64, device=x.device)
    return F.ctc_loss(x.log_softmax(-1), targets, (6, 6), (2, 2))


LOGITS = torch.linspace(-1, 1, 96).reshape(6, 2, 8)


def loses_on_cuda() -> None:
    program = foretrace.capture(loses_by_class_of_int64, (LOGITS,), target="cuda:sm80")
    assert "_ctc_loss" in program.cut("aten").graph_module.code


refuses("unsupported", "tracer/recorder/op_handlers.py:by_cudnn").when(
    captures(loses_by_class, LOGITS, target="cuda:sm80"), loses_on_cuda
)


def attends(q: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)  # here


def without_math(q: Tensor) -> Tensor:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
        return F.scaled_dot_product_attention(q, q, q)  # here


def with_math(q: Tensor) -> Tensor:
    kernels = torch.nn.attention.SDPBackend
    with torch.nn.attention.sdpa_kernel([kernels.CUDNN_ATTENTION, kernels.MATH]):
        return F.scaled_dot_product_attention(q, q, q)


def for_cuda() -> None:
    """Captured; the device is not there to run it."""
    assert foretrace.capture(with_math, (Q,), target="cuda:sm80").cut("export").nodes


refuses("no attention kernel", "operators/targets/sdpa.py:_none_left").when(
    captures(without_math, Q, target="cuda:sm80"), for_cuda
)
refuses("wrong call", "operators/targets/sdpa_conditions.py:mask_broadcasts").when(
    captures(attends, Q, torch.zeros(16)), captured(attends, Q, MASK)
)


class Weighted(torch.nn.Module):
    """Has a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(8))


class ClearsItsGradient(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        self.w.grad = None  # here
        return x * self.w


class Multiplies(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        return x * self.w


class WritesData(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        self.w.data.mul_(2)  # here
        return x * self.w


class WritesDataOfAnArgument(Weighted):
    """The argument requires no grad, and the gradient of `w` reads it."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.w
        x.data.mul_(2)  # here
        return y


class WritesAnArgument(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        y = x.clone() * self.w
        with torch.no_grad():
            x.mul_(2)
        return y


class WritesUnderNoGrad(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.w.mul_(2)
        return x * self.w


def cut_of(module: torch.nn.Module) -> Callable[[], None]:
    """The export cut of a capture trains as eager does."""
    return lambda: same_as_eager(module, (X,), cuts=("export",), loss=None)


refuses("side effect", "operators/abstract_tensors/abstract_tensor.py:_set_gradient").when(
    exports(ClearsItsGradient(), X), exported(Multiplies(), X)
)
refuses("side effect", "lowering/cuts/writeback.py:_check_data").when(
    exports(WritesData(), X), cut_of(WritesUnderNoGrad()), cut_of(WritesData())
)
refuses("side effect", "lowering/cuts/writeback.py:_check_data").when(
    exports(WritesDataOfAnArgument(), X),
    cut_of(WritesAnArgument()),
    cut_of(WritesDataOfAnArgument()),
)


def bilinear_under_autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return F.bilinear(x, x, FILTER)  # here


def bilinear_without(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", enabled=False):
        return F.bilinear(x.float(), x.float(), FILTER.float())


FILTER = torch.randn(3, 8, 8)
refuses("autocast", "tracer/recorder/dispatch.py:_check_autocast").when(
    captures(bilinear_under_autocast, X), captured(bilinear_without, X)
)


def factors(x: Tensor) -> Any:
    return torch.linalg.qr(x, out=(torch.empty(0), torch.empty(0)))  # here


def factors_alone(x: Tensor) -> Any:
    return tuple(torch.linalg.qr(x))


refuses("no functional form", "tracer/functionalization/out_variants.py:_check_known").when(
    captures(factors, X), captured(factors_alone, X)
)


def normalizes(x: Tensor, mean: Tensor, var: Tensor) -> Any:
    outs = (torch.empty(8, 6).t(), torch.empty(8), torch.empty(8))
    return torch.native_batch_norm(x, None, None, mean, var, True, 0.1, 1e-5, out=outs)  # here


def normalizes_and_copies(x: Tensor, mean: Tensor, var: Tensor) -> Any:
    out = torch.empty(8, 6).t()
    return out.copy_(torch.native_batch_norm(x, None, None, mean, var, True, 0.1, 1e-5)[0])


refuses("no functional form", "tracer/functionalization/out_variants.py:_is_functional_form").when(
    captures(normalizes, X, torch.zeros(8), torch.ones(8)),
    captured(normalizes_and_copies, X, torch.zeros(8), torch.ones(8)),
)


class Observes(torch.nn.Module):
    """Its first call gives its statistics their size."""

    mean: Tensor
    var: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.empty(0))
        self.register_buffer("var", torch.empty(0))

    def forward(self, x: Tensor) -> Any:
        if self.training and self.mean.numel() and x.dim() == 1:
            self.reset()
        return torch.native_batch_norm(  # here
            x, None, None, self.mean, self.var, True, 0.1, 1e-5
        )[0]

    def reset(self) -> None:
        self.mean, self.var = torch.zeros(8), torch.ones(8)


def with_sizes() -> None:
    net = Observes()
    net.reset()
    captured(net, X)()


refuses("side effect", "tracer/functionalization/written_layout.py:check_not_resized").when(
    captures(Observes(), X), with_sizes
)


def sees_the_memory_of_another(x: Tensor) -> Tensor:
    y = x * 2
    y.set_(x * 3, 0, [4], [1])  # here
    return y


def copies_another(x: Tensor) -> Tensor:
    return (x * 3).view(-1)[:4]


refuses("no functional form", "tracer/functionalization/in_place_checks.py:_sees_another").when(
    captures(sees_the_memory_of_another, X), captured(copies_another, X)
)


def an_input_sees_the_memory_of_another(x: Tensor) -> Tensor:
    x.set_(x * 3)  # here
    return x * 2


def another_is_copied_into_an_input(x: Tensor) -> Tensor:
    return x.clone().copy_(x * 3) * 2


refuses("no functional form", "tracer/functionalization/in_place_checks.py:_sees_another").when(
    exports(an_input_sees_the_memory_of_another, X), captured(another_is_copied_into_an_input, X)
)


def sets_what_is_followed(w: Tensor) -> Tensor:
    y = w * 2
    y.set_(w.detach() * 3)  # here
    return y.sum()


def sets_under_no_grad(w: Tensor) -> Tensor:
    y = (w * 2).detach()
    with torch.no_grad():
        y.set_(w * 3)
    return (w * y).sum()


refuses("no derivative", "tracer/functionalization/in_place_checks.py:take").when(
    captures(sets_what_is_followed, X.clone().requires_grad_()),
    trained(sets_under_no_grad, X.clone().requires_grad_()),
)


def squeezes_what_is_put_off(x: Tensor) -> Tensor:
    return torch.complex(x, x).conj().imag[:1].squeeze_(0)  # here


def squeezes_what_is_new(x: Tensor) -> Tensor:
    return torch.complex(x, x).conj().imag[:1].squeeze(0)


refuses("unsupported", "tracer/functionalization/in_place_checks.py:_check_not_put_off").when(
    captures(squeezes_what_is_put_off, X), captured(squeezes_what_is_new, X)
)


def sees_what_lies_between(x: Tensor) -> Tensor:
    x.mul_(2)
    return x.as_strided((4,), (1,))  # here


def saw_it_before(x: Tensor) -> Tensor:
    y = x.as_strided((4,), (1,)) * 1
    x.mul_(2)
    return y


def sees_a_clone(x: Tensor) -> Tensor:
    x.mul_(2)
    return x.clone(memory_format=torch.contiguous_format).as_strided((4,), (1,))


GAPS = torch.randn(6, 8)[:, ::2]
refuses("overlapping memory", "tracer/functionalization/storage_offsets.py:_count_in_graph").when(
    captures(sees_what_lies_between, GAPS),
    lambda: same_as_eager(saw_it_before, (GAPS,), cuts=("export",)),
    lambda: same_as_eager(sees_a_clone, (GAPS,), cuts=("export",)),
)


def is_written_beside_a_view(x: Tensor) -> Tensor:
    between = x.as_strided((4,), (1,))
    x.mul_(2)  # here
    return between


refuses("overlapping memory", "tracer/functionalization/functionalize.py:_check_seen").when(
    captures(is_written_beside_a_view, GAPS),
    lambda: same_as_eager(saw_it_before, (GAPS,), cuts=("export",)),
    lambda: same_as_eager(sees_a_clone, (GAPS,), cuts=("export",)),
)


WIDE = torch.randn(4, 8)
PART = WIDE[:, :4]


def copies_a_part(x: Tensor) -> Tensor:
    return x[:, :4] * copy.deepcopy(PART)  # here


refuses("unsupported", "operators/abstract_tensors/abstract_parameter.py:_check_whole").when(
    captures(copies_a_part, WIDE.clone()), captured(lambda x: x[:, :4] * PART.clone(), WIDE.clone())
)
