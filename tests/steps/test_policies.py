"""What of its forward a step makes again: by a policy, and in checkpoints. The bits are eager's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import foretrace
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Graph
from foretrace.lowering.partition.recompute import AGAIN
from tests.steps import STEPS
from tests.steps.data import features
from tests.steps.registry import Loop
from tests.support.memory import of_a_step
from tests.support.steps import same_cut, same_steps
from tests.support.turns import one_in

WIDE, ROWS = 32, 256
aten = torch.ops.aten


def recomputed_ops(graph: Graph) -> list[Op]:
    """The ops of a step that run a second time."""
    return [op for op in graph.ops if op.choice is not None and op.choice.what == AGAIN]


def no_products(op: Op) -> bool:
    """A predicate: only what matrix products made is kept."""
    return op.target in (aten.addmm.default, aten.mm.default, aten.linear.default)


POLICIES = ["min_cut", "recompute_all", no_products]
NAMES = [
    "optimizer_adam_for_loop", "optimizer_sgd_fused", "gradients_are_changed_and_kept",
    "reads_parameters_as_they_were", "indices_into_what_is_written", "asks_after_it_has_written",
]  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", one_in(3, [pytest.param(name, id=name) for name in NAMES]))
def test_bits_are_eagers(name: str, policy: Any) -> None:
    same_steps(STEPS[name].build, fullgraph=True, policy=policy, batches=5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "step",
    [pytest.param(s, id=f"{s.section}.{n}") for n, s in STEPS.items() if not s.breaks],
)
def test_every_step_made_again(step: Any) -> None:
    """Those that are refused are so as ever (test_steps.py)."""
    try:
        same_steps(step.build, fullgraph=True, policy="recompute_all", batches=5)
    except foretrace.Refusal as refusal:
        pytest.skip(refusal.kind)


def blocks(share: float) -> nn.ModuleList:
    """Six; `share` of what each gives is dropped."""
    return nn.ModuleList(
        nn.Sequential(nn.Linear(WIDE, WIDE), nn.Tanh(), nn.LayerNorm(WIDE), nn.GELU(),
                      *[nn.Dropout(share)] * (share > 0))
        for _ in range(6)
    )  # fmt: skip


def deep(around: Callable[..., Any] = lambda block, x: block(x), share: float = 0.5) -> Loop:
    model = blocks(share)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train(x: Tensor) -> Tensor:
        for block in model:
            x = around(block, x)
        loss = F.mse_loss(x, torch.zeros_like(x))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    def batch(index: int) -> tuple[Tensor]:
        return (torch.randn(ROWS, WIDE, generator=torch.Generator().manual_seed(index)),)

    return Loop(train, batch, model=model, optimizer=optimizer)


def in_a_checkpoint(block: Any, x: Tensor) -> Any:
    return checkpoint(block, x, use_reentrant=False)


def in_a_selective_one(block: Any, x: Tensor) -> Any:
    def contexts() -> Any:
        return create_selective_checkpoint_contexts([aten.addmm.default])

    return checkpoint(block, x, use_reentrant=False, context_fn=contexts)


@pytest.mark.parametrize("around", [in_a_checkpoint, in_a_selective_one])
@pytest.mark.parametrize("policy", [None, "min_cut", "recompute_all"])
def test_checkpoints(around: Callable[..., Any], policy: str | None) -> None:
    same_steps(lambda: deep(around), fullgraph=True, policy=policy, batches=4)


def again(around: Callable[..., Any], policy: Any = None) -> list[str]:
    loop = deep(around)
    for index in range(2):
        loop.step(*loop.batch(index))
    cut = foretrace.capture(loop.step, loop.batch(2)).cut("step", policy=policy)
    return [str(op.target) for op in recomputed_ops(cut.graph)]


def test_what_is_made_again() -> None:
    assert again(lambda block, x: block(x)) == []
    cheap = again(lambda block, x: block(x), "min_cut")
    assert cheap
    assert "aten.addmm.default" not in cheap
    assert "aten.addmm.default" in again(lambda block, x: block(x), "recompute_all")
    assert again(in_a_checkpoint).count("aten.addmm.default") == 6
    kept = again(in_a_selective_one)
    assert kept
    assert "aten.addmm.default" not in kept


def test_random_numbers_of_a_checkpoint_are_drawn_again() -> None:
    """From the state of the generator; what takes no more memory than that is kept."""
    assert again(in_a_checkpoint).count("run_with_rng_state") == 6
    assert not any("bernoulli" in name for name in again(lambda block, x: block(x)))
    kept = again(lambda block, x: torch.cat([in_a_checkpoint(block, x[:8]), x[8:]]))
    assert "aten.addmm.default" in kept
    assert "run_with_rng_state" not in kept


@pytest.mark.parametrize("policy", [None, "min_cut"])
def test_a_checkpoint_that_draws_holds_no_more_than_eagers(policy: str | None) -> None:
    def made() -> tuple[Callable[..., Any], list[Any]]:
        loop = deep(in_a_checkpoint)
        return loop.step, [loop.batch(index) for index in range(5)]

    eager = of_a_step(*made())
    step, batches = made()
    assert of_a_step(foretrace.compile(step, fullgraph=True, policy=policy), batches) <= eager


def draws_in_many_ways(block: Any, x: Tensor) -> Tensor:
    def inside(x: Tensor) -> Tensor:
        y = block(x + torch.rand(ROWS, WIDE)) * torch.randn_like(x)
        heads = y.view(1, 1, ROWS, WIDE)
        y = F.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.25)[0, 0]
        return F.feature_alpha_dropout(y) + F.alpha_dropout(x, 0.25, training=True)

    return checkpoint(inside, x, use_reentrant=False)


@pytest.mark.parametrize("policy", [None, "min_cut", "recompute_all"])
def test_draws_of_many_kinds(policy: str | None) -> None:
    same_steps(lambda: deep(draws_in_many_ways), fullgraph=True, policy=policy, batches=3)
    assert "run_with_rng_state" in again(draws_in_many_ways, policy)


def test_parts_and_a_file_draw_again(tmp_path: Any) -> None:
    loop, plain = deep(in_a_checkpoint), deep(in_a_checkpoint)
    plain.held["model"].load_state_dict(loop.held["model"].state_dict())
    for each in (loop, plain):
        torch.manual_seed(0)
        each.step(*loop.batch(0))
    program = foretrace.capture(loop.step, loop.batch(0), verify=True)
    forward, backward, _ = program.parts()
    assert sum("run_and_save" in name for name in forward.nodes) == 6
    assert sum("run_with" in name for name in backward.nodes) == 6
    program.save(tmp_path / "step.ft")
    loaded = foretrace.load(tmp_path / "step.ft")
    for index in range(2):
        torch.manual_seed(index)
        ours = loaded(*plain.batch(index))
        torch.manual_seed(index)
        assert torch.equal(ours, plain.step(*plain.batch(index)))


@pytest.mark.slow
def test_a_compiler_draws_again() -> None:
    def losses(compiled: bool) -> list[float]:
        torch.manual_seed(0)
        loop = deep(in_a_checkpoint)
        step: Any = loop.step
        if compiled:
            step = foretrace.compile(step, backend="inductor", policy="save_all", fullgraph=True)
        return [float(step(*loop.batch(index))) for index in range(4)]

    with torch._inductor.config.patch(fallback_random=True):  # eager's numbers
        assert losses(compiled=True) == pytest.approx(losses(compiled=False), rel=1e-5)


@pytest.mark.parametrize("policy", [*POLICIES, None])
def test_by_a_cut(policy: Any) -> None:
    loop, plain = deep(), deep()
    plain.held["model"].load_state_dict(loop.held["model"].state_dict())
    given = loop.batch(0)
    for each in (loop, plain):
        torch.manual_seed(1)
        each.step(*given)
    cut = foretrace.capture(loop.step, given).cut("step", policy=policy)
    torch.manual_seed(2)
    ours = cut(*given)
    torch.manual_seed(2)
    assert torch.equal(ours, plain.step(*given))
    pairs = zip(loop.held["model"].parameters(), plain.held["model"].parameters(), strict=True)
    assert all(torch.equal(p, q) for p, q in pairs)


def test_an_op_that_runs_again_says_so() -> None:
    loop = deep(in_a_checkpoint)
    loop.step(*loop.batch(0))
    cut = foretrace.capture(loop.step, loop.batch(0)).cut("step")
    names = [
        node.name for node in cut.graph_module.graph.nodes
        if (op := node.meta.get("foretrace")) in recomputed_ops(cut.graph) and op is not None
    ]  # fmt: skip
    told = str(cut.explain(names[0]))
    assert "made again" in told
    assert "test_policies.py" in told


def batches(loop: Loop) -> list[tuple[Any, ...]]:
    return [loop.batch(index) for index in range(4)]


@pytest.mark.parametrize("around", [in_a_checkpoint, in_a_selective_one])
def test_a_checkpoint_holds_no_more_than_eagers(around: Callable[..., Any]) -> None:
    """Without masks: eager draws them again, and a graph keeps them."""
    loop = deep(around, 0)
    eager = of_a_step(loop.step, batches(loop))
    loop = deep(around, 0)
    compiled = foretrace.compile(loop.step, fullgraph=True)
    assert of_a_step(compiled, batches(loop)) <= eager


def test_less_is_held_where_more_is_made_again() -> None:
    held = []
    for policy in ("save_all", "min_cut"):
        loop = deep()
        held.append(of_a_step(foretrace.compile(loop.step, policy=policy), batches(loop)))
    assert held[0] > held[1]


def test_a_policy_that_is_not_there() -> None:
    loop = deep()
    for ask in (
        lambda: foretrace.compile(loop.step, policy="most")(*loop.batch(0)),
        lambda: foretrace.capture(loop.step, loop.batch(0)).cut("step", policy="most"),
    ):
        with pytest.raises(foretrace.Refusal, match="there is no policy 'most'"):
            ask()


def test_batches_of_features_are_as_ever() -> None:
    """What is no step takes a policy for nothing."""
    model = nn.Linear(6, 2)
    compiled = foretrace.compile(model, policy="recompute_all", fullgraph=True)
    (x,) = features(0)
    assert torch.equal(compiled(x), model(x))


@pytest.mark.parametrize("level", ["step"])
@pytest.mark.parametrize("name", NAMES[:2])
def test_the_cut_as_ever(name: str, level: str) -> None:
    same_cut(STEPS[name].build, level)
