"""Cuts opened by a decomposition table: torch's own tables, beside make_fx with the same table."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
import torch._inductor.lowering  # the inductor table asks for it without importing it
from torch import Tensor, fx, nn
from torch._decomp import core_aten_decompositions
from torch._inductor.decomposition import select_decomp_table
from torch.export import Dim, default_decompositions
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import foretrace
from foretrace.ir.pydata.containers import named_leaves
from tests.programs import CASES, Case
from tests.support.bits import same_bits

# a kernel's own warning, with an entry of the inductor table on a batch of nothing
pytestmark = pytest.mark.filterwarnings("ignore:var_mean")

aten = torch.ops.aten
READ = aten._local_scalar_dense.default
FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default
TABLES: dict[str, Callable[[], Any]] = {
    "core": core_aten_decompositions,
    "inductor": select_decomp_table,
    "export": default_decompositions,
}
FEW = (
    "linear_layers", "layer_norm", "cross_entropy", "attention_causal", "lstm", "max_pooling",
    "filled_with_noise", "small_conv_net", "transformer_layer_eval", "next_token_loss",
)  # fmt: skip
OWN_GENERATOR = "generator_of_its_own"  # each call draws on, so two runs differ


@cache
def table_of(name: str) -> dict[Any, Callable[..., Any]]:
    return dict(TABLES[name]().items())


def zoo(fast: str) -> Iterator[Any]:
    """Every program, cut and table; those of one table for a few programs are fast."""
    for name, case in CASES.items():
        for cut in case.cuts:
            for table in TABLES:
                slow = () if name in FEW and table == fast else pytest.mark.slow
                if cut != "export" and name != OWN_GENERATOR:
                    yield pytest.param(case, cut, table, id=f"{name}-{cut}-{table}", marks=slow)


def captured(case: Case, size: int = 4, **options: object) -> Any:
    torch.manual_seed(0)
    subject = case.subject(size)
    try:
        program = foretrace.capture(subject.fn, subject.args, subject.kwargs, **options)
    except foretrace.Refusal as refusal:
        pytest.skip(str(refusal))
    return program, subject


def cut_of(program: foretrace.Program, case: Case, kind: str, **options: Any) -> foretrace.Cut:
    return program.cut(kind, loss=case.loss if kind == "joint" else None, **options)


def flat_inputs(cut: foretrace.Cut, subject: Any) -> list[Tensor]:
    """What the graph module takes, in the order of its signature."""
    leaves = [leaf for _, leaf in named_leaves((tuple(subject.args), subject.kwargs))[0]]
    given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    found = []
    for item in cut.graph.inputs:
        live = item.live()
        if item.role.kind == "tangent":
            type = item.value.type
            live = torch.empty_strided(type.shape, type.stride, dtype=type.dtype).normal_()
        elif item.argument is not None:
            live = given[item.argument]
        assert live is not None
        found.append(live.detach())
    return found


def run(module: Callable[..., Any], inputs: list[Tensor]) -> list[Tensor | None]:
    torch.manual_seed(1)
    return list(module(*inputs))


def shapes(results: list[Any]) -> list[torch.Size | None]:
    return [each.shape if isinstance(each, Tensor) else None for each in results]


def same(ours: list[Tensor | None], theirs: list[Tensor | None]) -> None:
    assert len(ours) == len(theirs)
    for left, right in zip(ours, theirs, strict=True):
        if isinstance(left, Tensor) and isinstance(right, Tensor):
            assert (left.dtype, left.shape) == (right.dtype, right.shape)
            assert same_bits(left, right)
        else:
            assert left == right


def targets(module: fx.GraphModule) -> set[Any]:
    return {node.target for node in module.graph.nodes if node.op == "call_function"}


@pytest.mark.parametrize(("case", "kind", "table"), list(zoo("core")))
def test_as_make_fx(case: Case, kind: str, table: str) -> None:
    """The same numbers as make_fx of the same graph with the same table, to the last bit."""
    program, subject = captured(case)
    try:
        plain = cut_of(program, case, kind)
    except foretrace.Refusal as refusal:
        pytest.skip(str(refusal))
    entries = table_of(table)
    if any(torch.Tag.out in getattr(target, "tags", ()) for target in targets(plain.graph_module)):
        pytest.skip("a table opens an out= op to its functional form")
    try:
        opened = cut_of(program, case, kind, decompositions=entries).graph_module
    except foretrace.Refusal as refusal:
        if refusal.kind != "decomposition raised":
            raise
        pytest.skip(str(refusal))
    if kind == "joint" and torch.ops.higher_order.scan in targets(plain.graph_module):
        pytest.skip("make_fx gives a scan real tensors and FakeTensors at once, which raises")
    if READ in targets(opened):
        pytest.skip("make_fx over real tensors reads no number")
    inputs = flat_inputs(plain, subject)
    if FLASH in targets(opened):
        # torch's entry gives the attention weights where the operator gives the logsumexp, which
        # the backward reads: make_fx then gives gradients that are wrong, or raises.
        entries = {op: entry for op, entry in entries.items() if op is not FLASH}
    try:
        theirs = run(make_fx(plain.graph_module, decomposition_table=entries)(*inputs), inputs)
    except SyntaxError:
        pytest.skip("make_fx prints an overload that is called like a keyword (random_.from)")
    if shapes(theirs) != shapes(run(plain.graph_module, inputs)):
        pytest.skip("torch gives one example's margin loss in another shape than the operator")
    same(run(opened, inputs), theirs)
    if table != "inductor":  # whose entries decline many calls, as add of what is not complex
        left = targets(opened) & set(entries)
        assert not left - {aten.detach.default}, left


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=() if name in FEW else pytest.mark.slow)
        for name, case in CASES.items()
        if case.varies
    ],
)
def test_symbolic_sizes(case: Case) -> None:
    """With open sizes the opened graph is, at another size, the one captured for that size."""
    table, kind = table_of("core"), "joint" if "joint" in case.cuts else "aten"
    program, _ = captured(case, 11, dynamic_shapes=True)
    fixed, subject = captured(case, 7)
    try:
        cuts = [cut_of(each, case, kind, decompositions=table) for each in (program, fixed)]
        module = cuts[0].graph_module
    except foretrace.Refusal as refusal:
        pytest.skip(str(refusal))
    inputs = flat_inputs(cuts[1], subject)
    same(run(module, inputs), run(cuts[1].graph_module, inputs))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.norm(self.proj(x))).sum()


def block(**options: Any) -> foretrace.Program:
    return foretrace.capture(Block(), (torch.randn(4, 8),), **options)


def test_joint_cut_runs() -> None:
    """The opened joint cut is called like every joint cut, and is near eager."""
    module, x = Block(), torch.randn(4, 8)
    program = foretrace.capture(module, (x,))
    loss, gradients = program.cut("joint", loss=0, decompositions=table_of("core"))(x)
    module(x).backward()
    torch.testing.assert_close(loss, module(x))
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad)


def test_each_decomposition_runs_once() -> None:
    """Once for all calls with operands of equal types, not once a call."""
    runs = []

    def tanh(x: Tensor) -> Tensor:
        runs.append(x.shape)
        return (x.exp() - (-x).exp()) / (x.exp() + (-x).exp())

    def fn(x: Tensor, y: Tensor) -> Tensor:
        return x.tanh().tanh().tanh() @ y.tanh()

    x, y = torch.randn(3, 4), torch.randn(4, 5)
    cut = foretrace.capture(fn, (x, y)).cut("aten", decompositions={aten.tanh.default: tanh})
    assert runs == [(3, 4), (4, 5)]
    assert aten.tanh.default not in targets(cut.graph_module)
    torch.testing.assert_close(cut(x, y), fn(x, y))


def test_what_a_decomposition_calls_is_opened_too() -> None:
    """Down to what has no entry; composites and writes inside are opened as everywhere."""

    def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
        y = x.clone()
        y[0].add_(0)
        return y.mul_(torch.special.expit(x)).softmax(-1)  # expit and softmax are composites

    table = {aten.gelu.default: gelu, aten.sigmoid.default: lambda x: 1 / (1 + (-x).exp())}
    cut = block().cut("aten", decompositions=table)
    names = {str(target) for target in targets(cut.graph_module)}
    assert {"aten.exp.default", "aten._softmax.default", "aten.select_scatter.default"} <= names
    assert not names & {"aten.gelu.default", "aten.sigmoid.default", "aten.mul_.Tensor"}


def test_declined_and_kept() -> None:
    """An entry that returns NotImplemented leaves its op, and so does keep=."""
    declines = {aten.gelu.default: lambda x, **_: NotImplemented}
    assert "gelu" in block().cut("aten", decompositions=declines).nodes
    kept = block().cut("joint", loss=0, decompositions=table_of("core"), keep=["layer_norm"])
    assert "layer_norm" in kept.nodes
    assert "layer_norm_backward" in kept.nodes
    inside = kept.graph_module.get_submodule("layer_norm_backward")
    assert isinstance(inside, fx.GraphModule)
    assert aten.native_layer_norm_backward.default not in targets(inside)


def test_copies_stay_copies() -> None:
    """An entry that hands its operand back does not make an output share an input's memory."""
    cut = foretrace.capture(lambda x: x.clone(), (torch.randn(3),)).cut(
        "aten", decompositions={aten.clone.default: lambda x, **_: x}
    )
    x = torch.randn(3)
    (out,) = cut.graph_module(x)
    assert out.data_ptr() != x.data_ptr()


def test_detach_stays_where_a_forward_cut_trains() -> None:
    """torch's tables make `detach` an `alias`, which autograd would follow."""

    def fn(w: Tensor) -> Tensor:
        return (w * w.detach()).sum()

    w = torch.randn(3, requires_grad=True)
    cut = foretrace.capture(fn, (w,)).cut("aten", decompositions=table_of("core"))
    (ours,), (eager,) = torch.autograd.grad(cut(w), w), torch.autograd.grad(fn(w), w)
    assert torch.equal(ours, eager)


def test_an_entry_that_gives_something_else_is_not_taken() -> None:
    """The backward reads the logsumexp, and torch's entry for it gives the attention weights."""
    q = torch.randn(2, 3, 5, 4, requires_grad=True)
    program = foretrace.capture(lambda q: F.scaled_dot_product_attention(q, q, q).sum(), (q,))
    forward = program.cut("aten", decompositions=table_of("core"))
    assert FLASH not in targets(forward.graph_module)
    joint = program.cut("joint", loss=0, decompositions=table_of("core"))
    name = next(n.name for n in joint.graph_module.graph.nodes if n.target is FLASH)
    assert "the table's entry gives" in str(joint.explain(name))


def test_for_a_device_that_is_not_there() -> None:
    """Entries run over labels, so the graph of a GPU is opened on a machine without one."""

    def fn(w: Tensor, i: Tensor) -> Tensor:
        return F.gelu(F.embedding(i, w)).sum()

    inputs = torch.randn(5, 3, requires_grad=True), torch.tensor([1, 2])
    program = foretrace.capture(fn, inputs, target="cuda:sm80")
    cut = program.cut("joint", loss=0, decompositions=table_of("core"))
    assert not targets(cut.graph_module) & set(table_of("core"))
    assert {str(out.type.device) for op in cut.graph.ops for out in op.outs} == {"cuda:0"}


def test_split_after_it_is_opened() -> None:
    """The pair of an opened joint graph gives what that graph gives."""
    module, x = Block(), torch.randn(4, 8)
    program, table = foretrace.capture(module, (x,)), table_of("core")
    loss, gradients = program.cut("joint", loss=0, decompositions=table)(x)
    forward, backward = program.pair(loss=0, decompositions=table)
    count = len(program.recorded.outputs)
    flat = [x if item.live() is None else item.live() for item in forward.graph.inputs]
    results = forward.graph_module(*[each.detach() for each in flat])
    same([*results[:count], *backward.graph_module(*results[count:])], [loss, *gradients.values()])


def test_explained() -> None:
    """A piece tells the op that it is of, the table, and then the whole path of that op."""
    cut = block().cut("joint", loss=0, decompositions=table_of("core"))
    told = str(cut.explain("erf"))
    assert "gelu_backward by the decomposition table given" in told
    assert "rule     GeluBackward0" in told
    assert "return F.gelu(" in told
    forward = block().cut("aten", decompositions=table_of("inductor"))
    told = str(forward.explain("rsqrt"))
    assert "native_layer_norm by the decomposition table given" in told
    assert "written  aten.layer_norm.default" in told
    assert "return F.gelu(" in told
    for each in (cut, forward):
        assert not [n for n in each.nodes if "is not known" in str(each.explain(n))]


def test_guards_of_a_decomposition() -> None:
    """What an entry asks of open sizes is a guard of later calls."""

    def gelu(x: Tensor, **_: Any) -> Tensor:
        return x * 2 if x.shape[0] > 3 else x * 3

    program = block(dynamic_shapes={"x": {0: Dim("rows")}})
    cut = program.cut("aten", decompositions={aten.gelu.default: gelu})
    cut(torch.randn(5, 8))
    with pytest.raises(foretrace.Refusal, match=r"> 3|>= 4|< 4|3 <|4 <"):
        cut(torch.randn(2, 8))


def raising(x: Tensor, **_: Any) -> Tensor:
    raise ValueError("no")


@pytest.mark.parametrize(
    ("table", "kind"),
    [
        ({aten.gelu.default: raising}, "decomposition raised"),
        ({aten.gelu.default: lambda x, **_: x * x.sum().item()}, "data-dependent"),
        ({aten.gelu.default: 3}, "wrong decompositions"),
        ({"gelu": raising}, "wrong decompositions"),
        ([aten.gelu.default], "wrong decompositions"),
    ],
)
def test_refused(table: Any, kind: str) -> None:
    """A table that is none, and a decomposition that fails, with the user's line where one is."""
    with pytest.raises(foretrace.Refusal) as caught:
        block().cut("aten", decompositions=table)
    assert caught.value.kind == kind
    if kind != "wrong decompositions":
        assert "return F.gelu(" in str(caught.value)
