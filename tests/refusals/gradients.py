"""Gradients: what has none, what hooks and Functions do, and what a backward is asked."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import foretrace
from tests.refusals.asks import Calls, captures, cuts, exports
from tests.refusals.follow import captured, compiled, exported, same, trained
from tests.refusals.registry import refuses
from tests.support.compare import same_as_eager

X = torch.randn(6, 8)
W = torch.randn(6, 8, requires_grad=True)
SEEN = torch.randn(6, 8)


def divides_down(w: Tensor) -> Tensor:
    return (torch.floor_divide(w * 2, 3) + w).sum()  # here


def divides_down_detached(w: Tensor) -> Tensor:
    return (torch.floor_divide((w * 2).detach(), 3) + w).sum()


refuses("no derivative", "autograd/derivatives/autograd_run.py:underivable").when(
    cuts(divides_down, W, loss=0),
    trained(divides_down_detached, W),
    "tests/programs/own_backward.py registers rules",
)


LIBRARY = torch.library.Library("foretrace_refused_gradients", "DEF")
ours = torch.ops.foretrace_refused_gradients
for name in ("wave", "wave_with_autograd"):
    LIBRARY.define(f"{name}(Tensor x) -> Tensor")
    LIBRARY.impl(name, lambda x: x.sin(), "CPU")
    LIBRARY.impl(name, torch.empty_like, "Meta")


def _wave_saves(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


torch.library.register_autograd(
    "foretrace_refused_gradients::wave_with_autograd",
    lambda ctx, gradient: gradient * ctx.saved_tensors[0].cos(),
    setup_context=_wave_saves,
    lib=LIBRARY,
)


def is_followed_inside_of_its_kernel(w: Tensor) -> Tensor:
    return (ours.wave(w * 2) + w).sum()  # type: ignore[no-any-return]  # here


refuses("no derivative", "autograd/derivatives/autograd_run.py:_followed_inside").when(
    cuts(is_followed_inside_of_its_kernel, W, loss=0),
    trained(lambda w: (ours.wave_with_autograd(w * 2) + w).sum(), W),
    "tests/programs/own_backward.py registers rules",
    trained(lambda w: (ours.wave((w * 2).detach()) + w).sum(), W),
)


def writes_out(w: Tensor) -> Tensor:
    return torch.mul(w, 2, out=torch.empty(6, 8)).sum()  # here


def writes_none(w: Tensor) -> Tensor:
    return torch.mul(w, 2).sum()


refuses("no derivative", "tracer/functionalization/in_place_checks.py:check_leaves").when(
    captures(writes_out, W), trained(writes_none, W)
)


def copies_a_list(w: Tensor) -> Tensor:
    rows = [w[0] * 2, w[1] * 2]
    torch._foreach_copy_(rows, [w[2], w[3]])  # here
    return rows[0].sum()


def copies_a_list_unseen(w: Tensor) -> Tensor:
    rows = [w[0].detach() * 2, w[1].detach() * 2]
    with torch.no_grad():
        torch._foreach_copy_(rows, [w[2], w[3]])
    return (rows[0] * w).sum()


def copies_each(w: Tensor) -> Tensor:
    row = w[0] * 2
    return row.copy_(w[2]).sum()


refuses("no derivative", "tracer/functionalization/out_variants.py:write_one_by_one").when(
    captures(copies_a_list, W), trained(copies_a_list_unseen, W), trained(copies_each, W)
)


def writes_a_leaf(w: Tensor) -> Tensor:
    return w.add_(1).sum()  # here


def writes_a_clone(w: Tensor) -> Tensor:
    return w.clone().add_(1).sum()


refuses("in-place on leaf", "tracer/functionalization/in_place_checks.py:check_leaves").when(
    captures(writes_a_leaf, W), trained(writes_a_clone, W)
)


def writes_an_unbound(w: Tensor) -> Tensor:
    rows = (w * 2).unbind(0)
    rows[0].mul_(3)  # here
    return rows[0].sum()


def writes_a_selected(w: Tensor) -> Tensor:
    row = (w * 2).select(0, 0)
    row.mul_(3)
    return row.sum()


refuses("in-place on view", "tracer/functionalization/current_value.py:not_tracked").when(
    captures(writes_an_unbound, W), trained(writes_a_selected, W)
)


def multiplies_by_inferred(w: Tensor) -> Tensor:
    with torch.inference_mode():
        scale = w.abs()
    return (scale * w).sum()  # here


def multiplies_by_a_clone(w: Tensor) -> Tensor:
    with torch.inference_mode():
        scale = w.abs()
    return (scale.clone() * w).sum()


def multiplies_by_unfollowed(w: Tensor) -> Tensor:
    with torch.no_grad():
        scale = w.abs()
    return (scale * w).sum()


refuses("inference tensor", "tracer/recorder/modes_inside.py:check").when(
    captures(multiplies_by_inferred, W),
    trained(multiplies_by_a_clone, W),
    trained(multiplies_by_unfollowed, W),
)


def splits_in_inference(w: Tensor) -> Tensor:
    with torch.inference_mode():
        first, _ = w.unsafe_chunk(2)  # here
    return first


def chunks_in_inference(w: Tensor) -> Tensor:
    with torch.inference_mode():
        first, _ = w.chunk(2)
    return first


def splits_unfollowed(w: Tensor) -> Tensor:
    with torch.no_grad():
        first, _ = w.unsafe_chunk(2)
    return first


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


def doubles_in_inference(x: Tensor) -> Tensor:
    with torch.inference_mode(), torch.enable_grad():
        return Doubles.apply(x)  # here


def doubles_outside(x: Tensor) -> Tensor:
    with torch.inference_mode(), torch.inference_mode(mode=False):
        return Doubles.apply(x)


def checkpoints_in_inference(x: Tensor) -> Tensor:
    with torch.inference_mode(), torch.enable_grad():
        return checkpoint(torch.sin, x, use_reentrant=False)  # here


def checkpoints_outside(x: Tensor) -> Tensor:
    return checkpoint(torch.sin, x, use_reentrant=False)


refuses("inference tensor", "tracer/recorder/modes_inside.py:check_mode").when(
    captures(doubles_in_inference, W), captured(doubles_outside, W)
)
refuses("inference tensor", "tracer/recorder/modes_inside.py:check_mode").when(
    captures(checkpoints_in_inference, W), captured(checkpoints_outside, W)
)


def views_a_leaf_in_inference(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return torch.ones_like(x, requires_grad=True)[0]  # here


def views_a_detached_leaf(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return torch.ones_like(x, requires_grad=True).detach()[0]


def views_an_unfollowed_leaf(x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.ones_like(x, requires_grad=True)[0]


refuses("inference tensor", "tracer/recorder/modes_inside.py:check").when(
    captures(views_a_leaf_in_inference, X),
    captured(views_a_detached_leaf, X),
    captured(views_an_unfollowed_leaf, X),
)
refuses("inference tensor", "tracer/recorder/modes_inside.py:check").when(
    captures(splits_in_inference, W),
    captured(chunks_in_inference, W),
    captured(splits_unfollowed, W),
)


def writes_what_kron_reads(w: Tensor) -> Tensor:
    y = w * 2
    z = torch.kron(y, y)  # here
    y.mul_(2)
    return z.sum()


def writes_a_clone_beside_kron(w: Tensor) -> Tensor:
    y = w * 2
    z = torch.kron(y, y)
    return z.sum() + y.clone().mul_(2).sum()


refuses("modified in place", "autograd/eager_history/version_counters.py:written_since").when(
    cuts(writes_what_kron_reads, W, loss=0), trained(writes_a_clone_beside_kron, W)
)


def writes_a_used_leaf(w: Tensor) -> tuple[Tensor, Tensor]:
    leaf = torch.ones(8, requires_grad=True)
    y = (w * leaf).sum()  # here
    with torch.no_grad():
        leaf.mul_(2)
    return y, leaf


def writes_a_leaf_first(w: Tensor) -> Tensor:
    leaf = torch.ones(8, requires_grad=True)
    with torch.no_grad():
        leaf.mul_(2)
    return (w * leaf).sum()


refuses("unsupported", "tracer/functionalization/autograd_leaves.py:check_parted").when(
    captures(writes_a_used_leaf, W), trained(writes_a_leaf_first, W)
)


def gives_a_leaf_with_its_gradient(w: Tensor) -> Tensor:
    leaf = w.detach().requires_grad_()  # here
    (leaf * 2).sum().backward()
    return leaf


def gives_both(w: Tensor) -> tuple[Tensor, Tensor]:
    leaf = w.detach().requires_grad_()
    (leaf * 2).sum().backward()
    return leaf.detach(), leaf.grad  # type: ignore[return-value]


refuses("side effect", "session/run/outputs.py:_of_gradient").when(
    captures(gives_a_leaf_with_its_gradient, W), captured(gives_both, W)
)


INNER = torch.randn(2, 6, 8)[0].requires_grad_()


def turns_without_a_history(w: Tensor) -> Tensor:
    y = w * 2
    with torch.no_grad():
        y.t_()  # here
    return y


def turns_what_is_new(w: Tensor) -> Tensor:
    return (w * 2).t()


refuses("unsupported", "tracer/functionalization/in_place_checks.py:reshape").when(
    captures(turns_without_a_history, W), captured(turns_what_is_new, W)
)


def uses_a_view_of_a_view(w: Tensor) -> Tensor:
    row = w[0]
    w.detach().mul_(2)
    return row.sum()  # here


def views_after_the_write(w: Tensor) -> Tensor:
    w.detach().mul_(2)
    row = w[0]
    return row.sum()


def writes_a_clone_of_a_view(w: Tensor) -> Tensor:
    row = w[0]
    return row.sum() + w.detach().clone().mul_(2).sum()


refuses("in-place on view", "tracer/functionalization/current_value.py:of_another").when(
    captures(uses_a_view_of_a_view, INNER),
    trained(views_after_the_write, INNER),
    trained(writes_a_clone_of_a_view, INNER),
)


def of_columns(w: Tensor, x: Tensor, *, cloned: bool) -> None:
    cut = foretrace.capture(views_after_the_write, (w.t(),)).cut("export")
    cut(x.t().clone() if cloned else x.t())  # here


refuses("in-place on view", "runtime/calls/run_cut.py:write_back").when(
    lambda: of_columns(W, INNER, cloned=False),
    lambda: of_columns(W.detach().clone().requires_grad_(), INNER, cloned=True),
    at=of_columns,
)


def writes_what_a_checkpoint_reads(w: Tensor) -> Tensor:
    y = w * 2
    z = checkpoint(lambda: y.exp() * 1, use_reentrant=False)  # here
    y.mul_(2)
    return z.sum()


def writes_a_clone_beside_a_checkpoint(w: Tensor) -> Tensor:
    y = w * 2
    z = checkpoint(lambda: y * y, use_reentrant=False)
    y.clone().mul_(2)
    return z.sum()


refuses("modified in place", "autograd/eager_history/version_counters.py:written_since").when(
    cuts(writes_what_a_checkpoint_reads, W, loss=0), trained(writes_a_clone_beside_a_checkpoint, W)
)


class Normed(nn.Module):
    """Batch norm whose statistics eager brings up to date twice, or once."""

    def __init__(self, *, apart: bool) -> None:
        super().__init__()
        self.norm, self.apart = nn.BatchNorm1d(8), apart

    def forward(self, w: Tensor) -> Tensor:
        if self.apart:
            return checkpoint(torch.exp, self.norm(w), use_reentrant=False).sum()
        return checkpoint(lambda q: self.norm(q).exp(), w, use_reentrant=False).sum()  # here


def adds_in_a_checkpoint(w: Tensor, count: Tensor) -> Tensor:
    def counted(q: Tensor) -> Tensor:
        count.add_(1)  # here
        return q.exp() * 2

    return checkpoint(counted, w, use_reentrant=False).sum()


def adds_beside_a_checkpoint(w: Tensor, count: Tensor) -> Tensor:
    count.add_(1)
    return checkpoint(lambda q: q.exp() * 2, w, use_reentrant=False).sum()


refuses("written twice", "autograd/eager_history/version_counters.py:_written_twice").when(
    cuts(adds_in_a_checkpoint, W, torch.zeros(2), loss=0),
    trained(adds_beside_a_checkpoint, W, torch.zeros(2)),
    trained(Normed(apart=True), W),
)
refuses("written twice", "autograd/eager_history/version_counters.py:_written_twice").when(
    cuts(Normed(apart=False), W, loss=0),
    trained(Normed(apart=True), W),
    trained(Normed(apart=False).eval(), W),
)


def binds_what_a_checkpoint_reads(w: Tensor) -> Tensor:
    scale = w.exp()

    def scaled(q: Tensor) -> Tensor:
        return q * scale

    y = checkpoint(lambda q: scaled(q.sin()), w, use_reentrant=False)  # here
    scale = w.sum()
    return (y * scale).sum()


def gives_what_a_checkpoint_reads(w: Tensor) -> Tensor:
    scale = w.exp()
    y = checkpoint(lambda q, scale: q.sin() * scale, w, scale, use_reentrant=False)
    scale = w.sum()
    return (y * scale).sum()


def binds_another_name(w: Tensor) -> Tensor:
    scale = w.exp()
    y = checkpoint(lambda q: q.sin() * scale, w, use_reentrant=False)
    whole = w.sum()
    return (y * whole).sum()


refuses("modified in place", "session/patches/checkpoints.py:check").when(
    captures(binds_what_a_checkpoint_reads, W),
    trained(gives_what_a_checkpoint_reads, W),
    trained(binds_another_name, W),
)


class Policy(nn.Module):
    """Counts what it is asked, if at all in what `contexts` creates for it."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.asked = way, 0

    def contexts(self) -> Any:
        own = Policy("self")

        def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            counts = {"self": self, "own": own}.get(self.way)
            if counts is not None:
                counts.asked += 1
            return CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    def forward(self, w: Tensor) -> Tensor:
        if self.way == "none":
            return w.sin().cos().sum()
        run = lambda w: w.sin().cos()  # noqa: E731
        found = checkpoint(run, w, use_reentrant=False, context_fn=self.contexts)  # here
        return found.sum()


refuses("modified in place", "session/patches/checkpoints.py:_check_policy").when(
    captures(Policy("self"), W), trained(Policy("own"), W), trained(Policy("none"), W)
)


class Counting(nn.Module):
    """Counts in a checkpoint, or before it."""

    def __init__(self, inside: bool = True, checked: bool = True) -> None:
        super().__init__()
        self.inside, self.checked, self.calls = inside, checked, 0

    def body(self, x: Tensor) -> Tensor:
        self.calls += self.inside
        return x.sin() * self.calls

    def forward(self, w: Tensor) -> Tensor:
        self.calls += not self.inside
        if not self.checked:
            return self.body(w).sum()
        return checkpoint(self.body, w, use_reentrant=False).sum()  # here


refuses("modified in place", "session/patches/checkpoints.py:_check_changes_nothing").when(
    captures(Counting(), W),
    trained(Counting(inside=False), W),
    trained(Counting(checked=False), W),
)


def draws_others_in_its_backward(w: Tensor) -> Tensor:
    def half(x: Tensor) -> Tensor:
        return torch.nn.functional.dropout(x.sin())  # here

    return checkpoint(half, w, use_reentrant=False, preserve_rng_state=False).sum()


def draws_the_same(w: Tensor) -> Tensor:
    def half(x: Tensor) -> Tensor:
        return torch.nn.functional.dropout(x.sin())

    return checkpoint(half, w, use_reentrant=False).sum()


def draws_before(w: Tensor) -> Tensor:
    mask = torch.rand(6, 8) < 0.5

    def half(x: Tensor) -> Tensor:
        return x.sin() * mask

    return checkpoint(half, w, use_reentrant=False, preserve_rng_state=False).sum()


refuses("unsupported", "session/patches/checkpoints.py:_check_drawn_again").when(
    captures(draws_others_in_its_backward, W), trained(draws_the_same, W), trained(draws_before, W)
)


class LooseView(torch.nn.Module):
    """Gives a view of its weight that autograd cannot go back from."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(6, 8))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            turned = self.weight.t()  # here
        return turned, x @ turned


class DetachedView(LooseView):
    """One without a gradient."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        turned = self.weight.detach().t()
        return turned, x @ turned


class FollowedView(LooseView):
    """One that autograd goes back from."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        turned = self.weight.t()
        return turned, x @ turned


refuses("unsupported", "lowering/cuts/writeback.py:_check_loose").when(
    exports(LooseView(), X), exported(DetachedView(), X), exported(FollowedView(), X)
)


def writes_what_is_saved(w: Tensor) -> Tensor:
    y = w * 2
    z = y.exp()  # here
    z.mul_(2)
    return z.sum()


def writes_anew(w: Tensor) -> Tensor:
    y = w * 2
    return (y.exp() * 2).sum()


refuses("modified in place", "autograd/eager_history/version_counters.py:written_since").when(
    cuts(writes_what_is_saved, W, loss=0),
    trained(writes_anew, W),
    captured(writes_what_is_saved, X),
)


def squares(w: Tensor) -> Tensor:
    return (w * w).sum()


def adds_after(w: Tensor) -> Tensor:
    w.register_post_accumulate_grad_hook(lambda _: None)  # here
    return (w * w).sum()


refuses("autograd inside", "operators/abstract_tensors/tensor_methods.py:method").when(
    captures(adds_after, W), trained(squares, W)
)


def hooks_in_a_level(x: Tensor) -> Any:
    def hooked(y: Tensor) -> Tensor:
        z = y.sin()
        z.register_hook(lambda g: g * 2)  # here
        return z.sum()

    return torch.func.grad(hooked)(x)


def scales_what_it_gives(x: Tensor) -> Any:
    return torch.func.grad(lambda y: y.sin().sum())(x) * 2


def captured_there(program: Any) -> Any:
    return lambda: foretrace.capture(program, (X,), target="cuda:sm90").cut("aten")


refuses("autograd inside", "session/run/placement.py:check_no_hook").when(
    captures(hooks_in_a_level, X, target="cuda:sm90"),
    captured_there(scales_what_it_gives),
    captured(hooks_in_a_level, X),
)


def attends_to_each(x: Tensor) -> Any:
    def one(row: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(row, row, row)  # here

    return torch.vmap(one)(x[:, None, None])


def attends_by_math(x: Tensor) -> Any:
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        return attends_to_each(x)


refuses("unsupported", "tracer/forward_ad/jvp_queries.py:attention_by_math").when(
    captures(attends_to_each, X, target="cuda:sm90"),
    captured_there(attends_by_math),
    captured(attends_to_each, X),
)


def is_given_a_gradient_of_the_cpu(x: Tensor) -> Any:
    with torch.enable_grad():
        y = x.detach().requires_grad_()
        return torch.autograd.grad(y.sin() * y, y, torch.ones(6, 8))  # here


def is_given_one_of_the_target(x: Tensor) -> Any:
    with torch.enable_grad():
        y = x.detach().requires_grad_()
        return torch.autograd.grad(y.sin() * y, y, torch.ones(6, 8, device=y.device))


def differentiates_on_the_target() -> None:
    graph = foretrace.capture(is_given_one_of_the_target, (X,), target="cuda:sm90").cut("aten")
    (out,) = (type for type in graph.graph_module.graph.nodes if type.op == "output")
    assert {each.meta["val"].device.type for each in out.all_input_nodes} == {"cuda"}


refuses("program raised", "autograd/derivatives/autograd_run.py:_on_two_devices").when(
    captures(is_given_a_gradient_of_the_cpu, X, target="cuda:sm90"),
    differentiates_on_the_target,
    captured(is_given_a_gradient_of_the_cpu, X),
)


def asks_for_the_node(w: Tensor) -> Tensor:
    return w * 2 if (w * 2).grad_fn is not None else w  # here


def asks_whether_followed(w: Tensor) -> Tensor:
    return w * 2 if (w * 2).requires_grad else w


refuses("autograd inside", "operators/abstract_tensors/abstract_tensor.py:grad_fn").when(
    captures(asks_for_the_node, W), captured(asks_whether_followed, W)
)


class Marks(torch.autograd.Function):
    """Writes to its input, and returns another tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2) * 1

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * 2


class Returns(Marks):
    """Returns what it has written to."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)


class Makes(torch.autograd.Function):
    """The same with a new tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * 2


def marks(w: Tensor) -> Any:
    return Marks.apply(w * 1).sum()  # here


def returns_marked(w: Tensor) -> Any:
    return Returns.apply(w * 1).sum()


def makes(w: Tensor) -> Any:
    return Makes.apply(w * 1).sum()


refuses("unsupported", "tracer/recorder/autograd_function.py:_refuse").when(
    captures(marks, W), trained(returns_marked, W)
)


def makes_for_a_file(w: Tensor) -> Any:
    return Makes.apply(w)  # here


@torch.library.custom_op("foretrace_refused_functions::double", mutates_args=())
def double(x: Tensor) -> Tensor:
    """As Makes."""
    return x * 2


double.register_fake(torch.empty_like)
double.register_autograd(lambda ctx, g: g * 2)


def exported_without_gradients() -> None:
    with torch.no_grad():
        program = foretrace.export(Calls(makes_for_a_file), (W,))
        same(program.module()(W), makes_for_a_file(W))


refuses("autograd.Function", "frontends/program/export_checks.py:_check_op").when(
    exports(makes_for_a_file, W), exported(double, W), exported_without_gradients
)


def asked_of_the_aten_cut() -> None:
    foretrace.capture(makes_for_a_file, (W,)).cut("aten")(W).sum().backward()


def trained_by_the_export_cut() -> None:
    cut, w = foretrace.capture(makes_for_a_file, (W,)).cut("export"), W.detach().requires_grad_()
    cut(w).sum().backward()
    same(w.grad, torch.full_like(w, 2))


refuses("autograd.Function", "runtime/calls/untrainable_results.py:_opened").when(
    asked_of_the_aten_cut, trained_by_the_export_cut, trained(makes, W), at=makes_for_a_file
)


def draws_between(x: Tensor) -> Tensor:
    return x * (x.detach().clone().random_(2, 9) > 1)  # here


def draws_from_zero(x: Tensor) -> Tensor:
    return x * (x.detach().clone().random_(9) >= 0)


refuses("unsupported", "frontends/program/export_checks.py:_check_op").when(
    exports(draws_between, W),
    exported(draws_from_zero, W),
    exported(lambda x: x * (torch.randint_like(x.detach(), 2, 9) > 1), W),
)


def follows_nothing(x: Tensor) -> Tensor:  # here
    return (x * x).sum()


def in_an_aten_cut() -> None:
    cut = foretrace.capture(follows_nothing, (X,)).cut("aten")
    same(cut(X), follows_nothing(X))
    trained(follows_nothing, W)()


refuses("nothing to differentiate", "lowering/pipelines/joint.py:_seed").when(
    cuts(follows_nothing, X), in_an_aten_cut
)


def two(w: Tensor) -> tuple[Tensor, Tensor]:  # here
    return (w * w).sum(), w * 2


def unfollowed(w: Tensor) -> tuple[Tensor, Tensor]:
    y = w.detach().sum()  # here
    return y, (w * w).sum()


def large(w: Tensor) -> Tensor:
    return w * w  # here


LOSS = "lowering/pipelines/joint.py:_loss_value"
refuses("wrong loss", LOSS).when(cuts(two, W, loss=7), trained(two, W))
refuses("wrong loss", LOSS).when(cuts(unfollowed, W, loss=0), trained(unfollowed, W, loss=1))
refuses("wrong loss", LOSS).when(cuts(large, W, loss=0), trained(large, W, loss=None))


def called_without_tangents() -> object:
    return foretrace.capture(doubles, (W,)).cut("joint")(W)


def called_with_wrong_tangents() -> object:
    return foretrace.capture(doubles, (W,)).cut("joint")(W, tangents=[torch.ones(3)])


def doubles(w: Tensor) -> Tensor:  # here
    return w * 2


refuses("wrong tangents", "runtime/calls/run_cut.py:_for_tangents").when(
    called_without_tangents, trained(doubles, W, loss=None), at=doubles
)
refuses("wrong tangents", "runtime/calls/tangents.py:_wrong").when(
    called_with_wrong_tangents, trained(doubles, W, loss=None), at=doubles
)


def by_graphs(graph: Any, inputs: object) -> Any:
    return graph


def twice(ask: Any, w: Tensor = W) -> Any:
    (slope,) = torch.autograd.grad(ask(w), w, create_graph=True)  # here
    return torch.autograd.grad(slope.sum(), w)


def at_once(ask: Any) -> Any:
    """A gradient of a gradient, under the autocast that the caller is in."""
    result = ask(W)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (slope,) = torch.autograd.grad(result, W, create_graph=True)  # here
    return slope


def outside(ask: Any) -> Any:
    return twice(ask)


def makes_a_leaf(w: Tensor) -> Tensor:
    own = torch.ones_like(w).requires_grad_()
    return ((w + own) ** 3).sum()


def by_eager(fn: Any, ask: Any = twice) -> Any:
    return lambda: same(ask(foretrace.compile(fn, fullgraph=True)), ask(fn))


def by_graphs_of(fn: Any) -> Any:
    return foretrace.compile(fn, backend=by_graphs, fullgraph=True)


refuses("double backward", "runtime/backends/autograd_function.py:_twice").when(
    lambda: twice(by_graphs_of(makes_a_leaf)),
    by_eager(makes_a_leaf),
    at=twice,
)


def noisy(w: Tensor) -> Tensor:
    return ((w + torch.randn_like(w)) ** 3).sum()  # here


def seeded(ask: Any) -> Any:
    torch.manual_seed(0)
    return twice(ask)


def by_compilers(fn: Any, policy: str | None = None) -> Any:
    backend = foretrace.aot_autograd(fw_compiler=by_graphs)
    return foretrace.compile(fn, backend=backend, fullgraph=True, policy=policy)


refuses("double backward", "lowering/pipelines/counterparts.py:_drawn").when(
    lambda: seeded(by_compilers(noisy)),
    by_eager(noisy, seeded),
    lambda: same(seeded(by_compilers(noisy, "save_all")), seeded(noisy)),
    at=noisy,
)


def raised(w: Tensor) -> Tensor:
    return ((w + GAIN @ X) ** 3).sum()


GAIN = torch.ones(6, 6)


def written_between(ask: Any) -> Any:
    result = ask(W)
    GAIN.mul_(1)
    (slope,) = torch.autograd.grad(result, W, create_graph=True)  # here
    return slope


def matmul_sum(w: Tensor) -> Tensor:
    return (w @ w.t()).sin().sum()


AGAIN = "runtime/backends/double_backward.py:_refused"
refuses("double backward", AGAIN).when(
    lambda: at_once(by_graphs_of(matmul_sum)),
    lambda: same(outside(by_graphs_of(matmul_sum)), outside(matmul_sum)),
    by_eager(matmul_sum, at_once),
    at=at_once,
)
refuses("double backward", AGAIN).when(
    lambda: written_between(by_compilers(raised)),
    lambda: same(twice(by_compilers(raised)), twice(raised)),
    by_eager(raised, written_between),
    at=written_between,
)


def slope_outside(ask: Any) -> Any:
    return torch.autograd.grad(ask(W), W)


def slope_under_autocast(ask: Any) -> Any:
    result = ask(W)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return torch.autograd.grad(result, W)  # here


refuses("autocast", "operators/abstract_tensors/autocast.py:check").when(
    lambda: slope_under_autocast(by_graphs_of(matmul_sum)),
    lambda: same(slope_outside(by_graphs_of(matmul_sum)), slope_outside(matmul_sum)),
    by_eager(matmul_sum, slope_under_autocast),
    at=slope_under_autocast,
)


def asks_under_autocast(w: Tensor) -> Any:
    total = matmul_sum(w)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return torch.autograd.grad(total, w)  # here


def asks_outside(w: Tensor) -> Any:
    return torch.autograd.grad(matmul_sum(w), w)


refuses("autograd inside", "autograd/backward/in_program_engine.py:_refused").when(
    captures(asks_under_autocast, W), captured(asks_outside, W)
)


def writes_what_is_followed(a: Tensor, w: Tensor) -> Tensor:
    a.copy_(w * 2)  # here
    return a.sum()


def asks_for_what_was_written(*, detached: bool) -> None:
    a, w = torch.zeros(6, 8), W.detach().requires_grad_()
    foretrace.capture(writes_what_is_followed, (a, w)).cut("joint", loss=0)(a, w)
    ((a.detach() if detached else a) * w).sum().backward()


refuses("double backward", "runtime/calls/untrainable_results.py:_spent").when(
    lambda: asks_for_what_was_written(detached=False),
    lambda: asks_for_what_was_written(detached=True),
    at=writes_what_is_followed,
)


def on_a_clone(fn: Any) -> Any:
    """A way out: what is no view."""
    return lambda: same(foretrace.compile(fn, fullgraph=True)(W * 1), fn(W * 1))


def reads_a_view_before(x: Tensor) -> Tensor:
    seen = x.sin() + x.cos()  # here
    return seen * x.mul_(2)


refuses("in-place on view", "session/run/mutations.py:_check_read_once").when(
    captures(reads_a_view_before, (W * 1)[1:]),
    on_a_clone(reads_a_view_before),
)


def makes_a_leaf_and_writes(x: Tensor) -> Tensor:
    x.requires_grad_(True)
    with torch.no_grad():
        x.mul_(2)  # here
    return x.detach() * 3


def writes_to_a_leaf(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.mul_(2)
    return x * 3


def by_backend(fn: Any, x: Tensor, backend: Any) -> Any:
    """A way out: both end with the same leaf."""
    live, eager = x.clone(), x.clone()
    for each in (live, eager):
        each.requires_grad_(fn is writes_to_a_leaf)
    compiled_by = foretrace.compile(fn, backend=backend, fullgraph=True)
    same([compiled_by(live), live, live.is_leaf], [fn(eager), eager, eager.is_leaf])


refuses("followed write", "runtime/calls/core.py:check_leaves").when(
    lambda: foretrace.compile(makes_a_leaf_and_writes, backend=by_graphs, fullgraph=True)(
        torch.ones(2)
    ),
    lambda: by_backend(makes_a_leaf_and_writes, torch.ones(2), "eager"),
    lambda: by_backend(writes_to_a_leaf, torch.ones(2), by_graphs),
    at=makes_a_leaf_and_writes,
)


class WritesInItsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, w: Tensor, count: Tensor) -> Tensor:
        ctx.count = count
        return w * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.count.add_(1)
        return gradient * 2, None


class WritesToAClone(WritesInItsBackward):
    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.count.clone().add_(1)
        return gradient * 2, None


def writes_to_a_clone(w: Tensor, count: Tensor) -> Any:
    return WritesToAClone.apply(w, count)


def writes_in_its_backward(w: Tensor, count: Tensor) -> Any:
    return WritesInItsBackward.apply(w, count)  # here


refuses("side effect", "autograd/derivatives/formula_tracer.py:check_kept").when(
    cuts(writes_in_its_backward, W, torch.zeros(2)),
    trained(writes_to_a_clone, W, torch.zeros(2), loss=None),
    compiled(writes_in_its_backward, W, torch.zeros(2)),
)


def reenters(w: Tensor) -> Any:
    return torch.utils.checkpoint.checkpoint(squares, w, use_reentrant=True)  # here


def does_not_reenter(w: Tensor) -> Any:
    return torch.utils.checkpoint.checkpoint(squares, w, use_reentrant=False)


refuses("autograd inside", "tracer/recorder/function_target.py:_check_own").when(
    cuts(reenters, W, loss=0), trained(does_not_reenter, W)
)


class Misfits(torch.autograd.Function):
    """Its backward returns what does not fit."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return torch.ones(5)


class Overwrites(torch.autograd.Function):
    """Its backward writes to the gradient that it gets."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g.mul_(2)


class OverwritesAClone(Overwrites):
    """The same with a clone."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g.clone().mul_(2)


def overwrites(w: Tensor) -> Any:
    return w.cos() + Overwrites.apply(w.sin())  # here


def overwrites_a_clone(w: Tensor) -> Any:
    return w.cos() + OverwritesAClone.apply(w.sin())


refuses("shared gradient", "autograd/derivatives/function_backward.py:_check_unwritten").when(
    cuts(overwrites, W), trained(overwrites_a_clone, W, loss=None)
)


def misfits(w: Tensor) -> Any:
    return Misfits.apply(w).sum()  # here


refuses("wrong rule", "autograd/derivatives/function_backward.py:_gradients").when(
    cuts(misfits, W, loss=0), trained(makes, W)
)


def asks_for_a_base(x: Tensor) -> Tensor:
    y = x * 2
    return y + 1 if x._base is None else y  # here


def asks_of_its_own(x: Tensor) -> Tensor:
    y = x * 2
    return y + 1 if y._base is None else y


def asks_nothing(x: Tensor) -> Tensor:
    return x * 2 + 1


refuses("autograd inside", "operators/abstract_tensors/tensor_queries.py:view_unknown").when(
    captures(asks_for_a_base, X), captured(asks_of_its_own, X), captured(asks_nothing, X)
)


def makes_a_leaf_of_numbers(x: Tensor) -> Tensor:
    y = x.detach() * 2
    return y.long().requires_grad_() + 1  # here


def makes_a_leaf_of_floats(x: Tensor) -> Tensor:
    y = x.detach() * 2
    return y.long().float().requires_grad_() + 1


refuses("autograd inside", "tracer/functionalization/autograd_leaves.py:require_grad").when(
    captures(makes_a_leaf_of_numbers, X), captured(makes_a_leaf_of_floats, X)
)


def makes_a_leaf_of_a_viewed(x: Tensor) -> Tensor:
    y = x.detach() * 2
    row = y[0]
    return y.requires_grad_().sum() + row  # here


def makes_a_leaf_of_a_clone(x: Tensor) -> Tensor:
    y = x.detach() * 2
    row = y[0]
    return y.clone().requires_grad_().sum() + row


refuses("unsupported", "tracer/functionalization/autograd_leaves.py:_viewed").when(
    captures(makes_a_leaf_of_a_viewed, X), captured(makes_a_leaf_of_a_clone, X)
)


def makes_a_leaf_of_a_view_without_history(w: Tensor) -> Tensor:
    with torch.no_grad():
        row = w[0]
    return row.requires_grad_()  # here


def makes_a_leaf_of_its_clone(w: Tensor) -> Tensor:
    with torch.no_grad():
        row = w[0].clone()
    return row.requires_grad_()


refuses("unsupported", "tracer/functionalization/autograd_leaves.py:_viewed").when(
    captures(makes_a_leaf_of_a_view_without_history, W), captured(makes_a_leaf_of_its_clone, W)
)


def follows_a_leaf_that_is_a_view(x: Tensor, w: Tensor) -> Tensor:
    made = x * 1
    row = made[0].requires_grad_()
    made.mul_(w)
    return row * 2  # here


def follows_a_leaf_that_is_a_clone(x: Tensor, w: Tensor) -> Tensor:
    made = x * 1
    row = made[0].clone().requires_grad_()
    made.mul_(w)
    return row * 2


refuses("in-place on view", "tracer/functionalization/current_value.py:of_leaf").when(
    captures(follows_a_leaf_that_is_a_view, X, W), captured(follows_a_leaf_that_is_a_clone, X, W)
)


class Integral(torch.autograd.Function):
    """Differentiates, in its backward, a function that it was given."""

    @staticmethod
    def forward(ctx: Any, fn: Any, w: Tensor) -> Tensor:
        ctx.fn = fn
        ctx.save_for_backward(w)
        return fn()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        with torch.enable_grad():
            area = ctx.fn()
        return None, *torch.autograd.grad(area, ctx.saved_tensors, gradient)  # here


class Cube(torch.autograd.Function):
    """Knows its derivative."""

    @staticmethod
    def forward(ctx: Any, w: Tensor) -> Tensor:
        ctx.save_for_backward(w)
        return w * w * w

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (w,) = ctx.saved_tensors
        return 3 * w * w * gradient


def integrates(w: Tensor) -> Tensor:
    v = w * 1
    return Integral.apply(lambda: v * v * v, v).sum()


def cubes_alone(w: Tensor) -> Tensor:
    return Cube.apply(w).sum()


refuses("autograd inside", "tracer/recorder/error_reports.py:_inner_gradient").when(
    cuts(integrates, W, loss=0), trained(cubes_alone, W), at=Integral.backward
)


class Again(torch.autograd.Function):
    """Runs a function again in its backward, which adds up the gradients of what that holds."""

    @staticmethod
    def forward(ctx: Any, fn: Any, w: Tensor) -> Tensor:
        ctx.fn = fn
        ctx.save_for_backward(w)
        with torch.no_grad():
            result: Tensor = fn(w)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        with torch.enable_grad():
            w = ctx.saved_tensors[0].detach().requires_grad_()
            torch.autograd.backward(ctx.fn(w), gradient)  # here
        return None, w.grad


LAYER = nn.Linear(8, 2)


def runs_again(w: Tensor) -> Tensor:
    return Again.apply(LAYER, w * 2).sum()


def runs_again_in_a_hook(w: Tensor) -> Tensor:
    def adds(gradient: Tensor) -> None:
        v = gradient.detach().requires_grad_()
        torch.autograd.backward(v * v, gradient)  # here

    v = w * 2
    v.register_hook(adds)
    return v.sum()


refuses("autograd inside", "tracer/recorder/error_reports.py:unless_it_adds").when(
    cuts(runs_again, W, loss=0), trained(cubes_alone, W), at=Again.backward
)
refuses("autograd inside", "tracer/recorder/error_reports.py:unless_it_adds").when(
    cuts(runs_again_in_a_hook, W, loss=0), trained(cubes_alone, W)
)


def detaches_a_view(w: Tensor) -> Tensor:
    row = (w * 2)[0]
    row.detach_()  # here
    return (w * row).sum()


def detaches(w: Tensor) -> Tensor:
    return (w * (w * 2)[0].detach()).sum()


refuses("in-place on view", "tracer/functionalization/in_place_checks.py:detach").when(
    captures(detaches_a_view, W), trained(detaches, W)
)


def detaches_another_shape(w: Tensor) -> tuple[Tensor, Tensor]:
    made = w * 2
    row = made[0]
    made.t_()
    made.detach_()  # here
    return made * w.t(), row


def detaches_before(w: Tensor) -> tuple[Tensor, Tensor]:
    made = w * 2
    row = made[0]
    return made.t().detach() * w.t(), row


refuses("in-place on view", "tracer/functionalization/in_place_checks.py:_check_not_seen").when(
    captures(detaches_another_shape, W), captured(detaches_before, W)
)


def uses_a_view_of_a_detached(w: Tensor) -> Tensor:
    made = w * 2
    row = made[0]
    made.mul_(2)
    made.detach_()
    return (w * row).sum()  # here


def views_what_is_detached(w: Tensor) -> Tensor:
    made = w * 2
    made.mul_(2)
    made.detach_()
    return (w * made[0]).sum()


refuses("in-place on view", "tracer/functionalization/current_value.py:of_detached").when(
    captures(uses_a_view_of_a_detached, W), trained(views_what_is_detached, W)
)


class Turns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, w: Tensor) -> Tensor:
        return w * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return (grad * torch.tensor([2j])).imag  # here


class TurnsBack(Turns):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return (grad * torch.full((1,), 2j)).imag


class KeepsTurn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, w: Tensor) -> Tensor:
        ctx.save_for_backward(torch.tensor([2j]))
        return w * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (turn,) = ctx.saved_tensors
        return (grad * turn).imag


def turns(w: Tensor) -> Tensor:
    return Turns.apply(w).sum()


refuses("no derivative", "autograd/derivatives/formula_tracer.py:lift_constant").when(
    cuts(turns, W, loss=0),
    trained(lambda w: TurnsBack.apply(w).sum(), W),
    trained(lambda w: KeepsTurn.apply(w).sum(), W),
    at=Turns.backward,
)


def returns_what_it_uses_twice(w: Tensor, clones: bool = False) -> tuple[Tensor, Tensor]:
    w.data.mul_(0.5)
    y = w.sin() * w  # here
    return y, w.clone() if clones else w


USED_TWICE = torch.randn(3, 4, requires_grad=True)
refuses("unsupported", "lowering/pipelines/returned_leaves.py:_check").when(
    cuts(returns_what_it_uses_twice, USED_TWICE, cut="export"),
    lambda: same_as_eager(
        lambda w: returns_what_it_uses_twice(w, True), (USED_TWICE,), loss=None, cuts=("export",)
    ),
    trained(returns_what_it_uses_twice, USED_TWICE, loss=None),
)
