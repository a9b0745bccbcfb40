"""The pair: forward, then backward, by every policy, against eager; and what is handed over."""

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from transformers import LlamaConfig, LlamaForCausalLM

import foretrace
from foretrace.frontends.program import Cut
from foretrace.ir.program.op import Op
from tests.programs import CASES, Case
from tests.support.compare import same_as_eager
from tests.support.turns import at_other_sizes, crossed, one_in

pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")

NAMED = ("min_cut", "save_all", "recompute_all")
CAPTURED, OTHER = 11, 7
aten = torch.ops.aten


def coin(seed: int) -> Callable[[Op], bool]:
    """A policy that says anything."""
    chance = random.Random(seed)
    return lambda _: chance.random() < 0.5


TRAINED = {name: case for name, case in CASES.items() if "joint" in case.cuts}
BY_NAME = [pytest.param(case, id=f"{case.section}.{name}") for name, case in TRAINED.items()]
VARYING = [each for each in at_other_sizes(1) if "joint" in each.values[0].cuts]


def every_policy() -> tuple[Any, ...]:
    return (*NAMED, coin(1), coin(2))


def compare(case: Case, policies: tuple[Any, ...], size: int = 4, **options: Any) -> None:
    """Pairs by these policies; a case that may be refused may be so here."""
    subject = case.subject(size)
    # a program's own generator goes on drawing from one cut of a capture to the next
    captures = [[each] for each in policies] if case.section == "randomness" else [policies]
    try:
        for each in captures:
            same_as_eager(
                subject.fn, subject.args, subject.kwargs,
                loss=case.loss, cuts=(), policies=each, **options,
            )  # fmt: skip
    except foretrace.Refusal:
        if not case.may_refuse:
            raise


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", one_in(10, BY_NAME))
def test_same_as_eager(case: Case) -> None:
    """Outputs, mutations, gradients and random state are those of eager, whatever is saved."""
    compare(case, every_policy())


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("case", "place"), crossed(VARYING, range(len(every_policy()))))
def test_another_size(case: Case, place: int) -> None:
    """The same pair, captured with symbolic sizes, at another size."""
    others = {"dynamic_shapes": True, "more_args": [case.subject(OTHER).args]}
    compare(case, every_policy()[place : place + 1], CAPTURED, **others)


class Block(nn.Module):
    """What a layer of a transformer has, and statistics that it writes."""

    def __init__(self, around: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 8)
        self.norm, self.batch = nn.LayerNorm(8), nn.BatchNorm1d(8)
        self.around = around

    def forward(self, x: Tensor) -> Tensor:
        y = self.around(self.inner, x) if self.around else self.inner(x)
        return self.batch(x + y).pow(2).mean()

    def inner(self, x: Tensor) -> Tensor:
        return F.dropout(self.second(F.gelu(self.first(self.norm(x)))), 0.2)


def halves(fn: Callable[..., Any], *args: Tensor, **options: Any) -> tuple[Cut, Cut]:
    """The pair of a program."""
    return foretrace.capture(fn, args).pair(**{"loss": 0, **options})


def targets(cut: Cut) -> list[Any]:
    """What the ops of a half call, forward ops only."""
    return [op.target for op in cut.graph.ops if op.because is None]


def bytes_saved(cut: Cut) -> int:
    """The memory held for the backward alone."""
    return sum(int(item.bytes) for item in cut.saved if not item.free)


# ---- what is saved ------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_any_predicate_is_exact(seed: int) -> None:
    """Whatever a predicate says of each op, the gradients are eager's."""
    same_as_eager(Block(), (torch.randn(5, 8),), cuts=(), policies=[coin(seed)])


def test_min_cut_saves_least() -> None:
    """No policy that runs only cheap ops again saves less; save_all saves more."""
    x = torch.randn(5, 8)
    least = bytes_saved(halves(Block(), x, policy="min_cut")[0])
    assert least < bytes_saved(halves(Block(), x, policy="save_all")[0])
    program = foretrace.capture(Block(), (x,))
    dear = {aten.addmm.default, aten.bernoulli.p, aten.mean.default}
    for seed in range(30):
        chance = coin(seed)
        policy = lambda op, chance=chance: op.target in dear or chance(op)  # noqa: E731
        assert bytes_saved(program.pair(loss=0, policy=policy)[0]) >= least


def test_dear_ops_run_once() -> None:
    """min_cut runs no matrix product again; recompute_all runs all of them again."""
    x = torch.randn(5, 8)
    assert aten.addmm.default not in targets(halves(Block(), x, policy="min_cut")[1])
    _, backward = halves(Block(), x, policy="recompute_all")
    assert targets(backward).count(aten.addmm.default) == 2
    assert targets(halves(Block(), x, policy="save_all")[1]) == [aten.t.default] * 2


@pytest.mark.parametrize("policy", [*NAMED, lambda _: False])
def test_random_numbers_are_drawn_once(policy: Any) -> None:
    """A mask is saved, whatever the policy says, and says why."""
    forward, backward = halves(Block(), torch.randn(5, 8), policy=policy)
    assert aten.bernoulli.p in targets(forward)
    assert aten.bernoulli.p not in targets(backward)
    reasons = [item.reason for item in forward.saved if item.op and "bernoulli" in repr(item.op)]
    if policy == "recompute_all":
        assert "random" in reasons[0]


def test_attention_without_dropout_may_run_again() -> None:
    """An attention kernel draws random numbers only where its dropout is not 0."""
    q = torch.randn(2, 2, 4, 8, requires_grad=True)
    _, backward = halves(lambda q: F.scaled_dot_product_attention(q, q, q), q, loss=None,
                         policy="recompute_all")  # fmt: skip
    assert aten._scaled_dot_product_flash_attention_for_cpu.default in targets(backward)


def test_views_are_made_again() -> None:
    """A view is never handed over: what it is a view of is, once."""

    def split(x: Tensor) -> Tensor:
        a, b = x.exp().reshape(2, -1).chunk(2, 1)
        return (a * b).sum()

    forward, _ = halves(split, torch.randn(4, 6, requires_grad=True), policy="save_all")
    made = [item for item in forward.saved if not item.free]
    assert [str(item.op.target) for item in made if item.op] == [
        "aten.exp.default",
        "aten.sum.default",
    ]


def test_saved_values_say_what_they_are() -> None:
    """Bytes, the user's line and a reason for each; inputs are free."""
    x = torch.randn(5, 8)
    forward, backward = halves(Block(), x)
    assert backward.saved == forward.saved
    for item in forward.saved:
        assert item.reason
        assert item.free == (item.op is None)
        if item.op is not None:
            assert item.op.origin.frame is not None
            assert item.op.origin.frame.file == __file__
    assert forward.pair is not None
    assert forward.pair.bytes == bytes_saved(forward)
    masks = [item for item in forward.saved if item.op and item.op.target is aten.bernoulli.p]
    assert all(item.bytes == 5 * 8 * 4 for item in masks)


def test_open_sizes_give_expressions() -> None:
    """Bytes of what has open sizes are an expression, and hold at any size."""
    rows = torch.export.Dim("rows")
    x = torch.randn(5, 8, requires_grad=True)
    program = foretrace.capture(lambda x: x.exp().sum(), (x,), dynamic_shapes={"x": {0: rows}})
    forward, _ = program.pair(loss=0, policy="save_all")
    assert forward.pair is not None
    (symbol,) = forward.pair.bytes.free_symbols
    assert forward.pair.bytes.subs({symbol: 7}) == 7 * 8 * 4 + 4


def test_a_size_is_handed_over_where_no_tensor_has_it() -> None:
    """The backward of a mean needs the number of rows, and gets no tensor that has them."""
    x = torch.randn(5, 3, requires_grad=True)
    program = foretrace.capture(lambda x: x.sum(0).sum(), (x,), dynamic_shapes=True)
    forward, backward = program.pair(policy="recompute_all")
    assert {item.role.name for item in backward.graph.inputs if item.size is not None}
    same_as_eager(
        lambda x: x.sum(0).sum(), (x,), cuts=(), policies=NAMED, loss=None, dynamic_shapes=True,
        more_args=[(torch.randn(7, 3, requires_grad=True),)],
    )  # fmt: skip
    assert all(isinstance(item.bytes, int) for item in forward.saved)


def test_unknown_policy() -> None:
    """A policy that is none is refused, with those that are."""
    with pytest.raises(foretrace.Refusal, match="min_cut"):
        halves(Block(), torch.randn(5, 8), policy="most")


# ---- writes -------------------------------------------------------------------------------------


def scaled(x: Tensor, w: Tensor) -> Tensor:
    y = (x.exp() * w).sum()
    x.mul_(3)
    return y


def through_a_view(x: Tensor, w: Tensor) -> Tensor:
    y = (x[1:].t().exp() * w.t()[:, 1:]).sum()
    x[0].add_(1)
    return y


def by_strides(x: Tensor, w: Tensor) -> Tensor:
    y = (x.as_strided((2, 2), (1, 3), 1).exp() * w[:2, :2]).sum()
    x.zero_()
    return y


@pytest.mark.parametrize("fn", [scaled, through_a_view, by_strides])
@pytest.mark.parametrize("layout", ["plain", "transposed", "gaps"])
def test_written_inputs_are_saved_as_they_were(fn: Callable[..., Any], layout: str) -> None:
    """The backward sees what an input held before it was written, in the input's layout."""
    memory = torch.randn(4, 8)
    x = {"plain": memory[:, :4].clone(), "transposed": memory[:, :4].clone().t(),
         "gaps": memory[:, 1:8:2]}[layout]  # fmt: skip
    w = torch.randn(4, 4, requires_grad=True)
    same_as_eager(fn, (x, w), cuts=(), policies=(*NAMED, coin(3)))
    forward, _ = halves(fn, x, w, policy="recompute_all")
    assert any("writes to this memory" in item.reason for item in forward.saved)


def test_a_bound_buffer_needs_no_copy() -> None:
    """A name bound to another tensor leaves the old tensor as it was."""

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.randn(3))

        def forward(self, w: Tensor) -> Tensor:
            y = (self.seen * w).sum()
            self.seen = self.seen + 1
            return y

    forward, _ = halves(Counts(), torch.randn(3, requires_grad=True))
    assert aten.clone.default not in targets(forward)
    same_as_eager(Counts(), (torch.randn(3, requires_grad=True),), cuts=(), policies=NAMED)


# ---- kept ops -----------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [["linear"], ["gelu", "layer_norm"], ["dropout"], ["Block"]])
def test_kept_ops_are_whole_on_both_sides(keep: list[str]) -> None:
    """A kept op is one op of forward and its derivative one op of backward."""
    x = torch.randn(5, 8)
    same_as_eager(Block(), (x,), cuts=(), policies=(*NAMED, coin(4)), keep=keep)


def test_a_kept_op_that_runs_again_is_one_unit() -> None:
    """In the forward it returns only what the forward uses."""
    forward, backward = halves(Block(), torch.randn(5, 8), policy="recompute_all", keep=["linear"])
    assert "linear" in forward.nodes
    assert "linear" in backward.nodes
    assert "linear_backward" in backward.nodes
    kept = next(op for op in forward.graph.ops if str(op.target) == "aten.linear.default")
    assert len(kept.outs) == 1


# ---- checkpoints --------------------------------------------------------------------------------


def once(fn: Callable[..., Any], x: Tensor) -> Any:
    return checkpoint(fn, x, use_reentrant=False)


@pytest.mark.parametrize("policy", NAMED)
def test_a_checkpoint_runs_again(policy: str) -> None:
    """Nothing made inside is saved but random numbers; matrix products run again."""
    x = torch.randn(5, 8)
    forward, backward = halves(Block(once), x, policy=policy)
    made = [item.op for item in forward.saved if item.op is not None]
    inside = [op.target for op in made if op.origin.checkpoint is not None]
    assert inside == [aten.bernoulli.p]
    assert aten.addmm.default in targets(backward)
    same_as_eager(Block(once), (x,), cuts=("joint",), policies=[policy])


class Stack(nn.Module):
    """Layers in checkpoints of their own, one in another."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False, **self.options)
        return checkpoint(lambda x: once(torch.exp, x) * x, x, use_reentrant=False).sum()


def test_what_goes_into_a_checkpoint_is_saved() -> None:
    """Each region runs again from its own inputs, as torch's do, not from the first one's."""
    x = torch.randn(5, 8, requires_grad=True)
    for policy in ("min_cut", "save_all"):
        forward, _ = halves(Stack(), x, policy=policy)
        made = [item for item in forward.saved if item.op is not None]
        assert [str(item.op and item.op.target) for item in made] == [
            "aten.tanh.default", "aten.tanh.default", "aten.tanh.default", "aten.sum.default",
        ]  # fmt: skip
    same_as_eager(Stack(), (x,), cuts=(), policies=(*NAMED, coin(5)))


def test_a_selective_checkpoint_saves_what_it_names() -> None:
    """The ops that the policy of `create_selective_checkpoint_contexts` names are saved."""
    context = partial(create_selective_checkpoint_contexts, [aten.addmm.default])
    x = torch.randn(5, 8, requires_grad=True)
    forward, backward = halves(Stack(context_fn=context), x, policy="recompute_all")
    made = [item.op.target for item in forward.saved if item.op is not None]
    assert made[:3] == [aten.addmm.default] * 3
    assert aten.tanh.default in targets(backward)
    same_as_eager(Stack(context_fn=context), (x,), cuts=(), policies=NAMED)


def test_no_checkpoint_without_gradients() -> None:
    """Under no_grad a checkpoint is a plain call, as in eager."""

    def fn(x: Tensor, w: Tensor) -> Tensor:
        with torch.no_grad():
            y = once(torch.exp, x)
        return (y * w).sum()

    x, w = torch.randn(3), torch.randn(3, requires_grad=True)
    program = foretrace.capture(fn, (x, w))
    assert all(op.origin.checkpoint is None for op in program.recorded.ops)


# ---- real models --------------------------------------------------------------------------------


def test_min_cut_of_a_model_runs_forward_and_backward() -> None:
    """The halves, called flat in the order of their signatures."""
    model, x = Block(), torch.randn(5, 8)
    forward, backward = halves(model, x)
    flat: Sequence[Any] = [
        x if item.live() is None else item.live() for item in forward.graph.inputs
    ]
    torch.manual_seed(3)
    results = forward(*flat)
    gradients = backward(*results[len(results) - len(forward.saved) :])
    torch.manual_seed(3)
    loss = model(x)
    loss.backward()
    assert torch.equal(results[0], loss)
    for output, gradient in zip(backward.graph.outputs, gradients, strict=True):
        assert torch.equal(gradient, model.get_parameter(output.role.name).grad)
    with pytest.raises(foretrace.Refusal, match="inputs"):
        backward(*results)


def test_a_reentrant_checkpoint_is_refused_with_the_way_out() -> None:
    """Its forward is captured; its backward would run autograd itself."""
    x = torch.randn(3, requires_grad=True)
    program = foretrace.capture(lambda x: checkpoint(torch.exp, x, use_reentrant=True).sum(), (x,))
    assert torch.equal(program.cut("aten")(x), x.exp().sum())
    with pytest.raises(foretrace.Refusal, match="use_reentrant=False"):
        program.pair(loss=0)


def test_gradient_checkpointing_of_transformers() -> None:
    """`gradient_checkpointing_enable` saves what goes into each layer, and nothing inside."""
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=3,
        num_attention_heads=2, use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).train()
    tokens = torch.randint(32, (2, 8))
    called = {"input_ids": tokens, "labels": tokens.clone()}
    plain = foretrace.capture(model, (), called).pair(loss=0, policy="save_all")[0]
    model.gradient_checkpointing_enable({"use_reentrant": False})
    forward, backward = foretrace.capture(model, (), called).pair(loss=0, policy="save_all")
    assert bytes_saved(forward) < bytes_saved(plain) / 2
    inside = {op.origin.checkpoint for op in forward.graph.ops} - {None}
    assert len(inside) == config.num_hidden_layers
    layers = [
        op for op in backward.graph.ops if op.because is None and op.target is aten.mm.default
    ]
    assert layers
    same_as_eager(model, (), called, cuts=(), policies=NAMED)


ASKED: dict[str, int] = {"count": 0}


def _policy_of(counts: dict[str, int]) -> Any:
    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        counts["count"] += 1
        odd = counts["count"] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if odd else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


@pytest.mark.filterwarnings("ignore:.*is not captured whole")
@pytest.mark.parametrize("outside", [False, True])
def test_a_policy_that_counts_is_asked(outside: bool) -> None:
    def program(x: Tensor) -> Tensor:
        contexts = (lambda: _policy_of(ASKED)) if outside else (lambda: _policy_of({"count": 0}))
        run = lambda x: x.sin().cos().sin()  # noqa: E731
        return checkpoint(run, x, use_reentrant=False, context_fn=contexts).sum()

    seen = []
    for call in (program, foretrace.compile(program, fullgraph=not outside)):
        ASKED["count"] = 0
        x = torch.arange(3.0, requires_grad=True)
        for _ in range(2):
            call(x).backward()
            seen.append((ASKED["count"], x.grad.tolist()))
    assert seen[:2] == seen[2:]
