"""What reads an ExportedProgram, given ours and torch's: unflatten, tables, ONNX, AOTInductor."""

import copy
import importlib
import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, unflatten
from torch.utils import _pytree as pytree

import foretrace
from tests.support import exporting
from tests.support.bits import differences
from tests.support.refusing import check
from tests.support.turns import some

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, of its consumers

X = torch.randn(3, 4)
EXPORTS = (foretrace.export, exporting.of_torch)


class Nested(nn.Module):
    """Containers in and out, keywords, None; a parameter and a buffer that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, more: Any, *, scale: float = 1.0, mask: Any = None) -> Any:
        self.calls.add_(1)
        y = x * self.weight * scale + more["bias"]
        y = y if mask is None else y.masked_fill(mask, 0)
        return {"y": y, "rest": (y.sum(), [x, None])}


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(4, 4), Nested()

    def forward(self, x: Tensor) -> Tensor:
        found = self.inner(self.first(x), {"bias": x + 1}, scale=2.0, mask=x > 0)
        return found["y"] + found["rest"][0] * found["rest"][1][0]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.mix(self.norm(x)).relu_()
        return x + y, y


class Stack(nn.Module):
    """Blocks of which one is called twice, and one has two names."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.last = self.blocks[1]

    def forward(self, x: Tensor) -> Tensor:
        for block in (*self.blocks, self.last):
            x, y = block(x)
        return x * y


class Normed(nn.Module):
    """A layer whose backward has saved what it then writes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.act = nn.BatchNorm1d(4), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(x + self.norm.running_mean))


class Reshapes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(-1, 2)


class Open(nn.Module):
    """A submodule whose result's size follows from an open one."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs, self.out = Reshapes(), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.pairs(x))


KEPT: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "containers": (Outer, ("inner",)),
    "two": (Outer, ("first", "inner")),
    "none kept": (Outer, ()),
    "written inside": (Normed, ("norm",)),
    "written, not kept": (Normed, ("act",)),
    "a layer of many": (Stack, ("blocks.0",)),
    "called twice": (Stack, ("blocks.1",)),
    "inside each other": (Stack, ("blocks.0", "blocks.0.norm")),
    "open sizes": (Open, ("pairs", "out")),
}


def made(kind: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind()


def trained(module: nn.Module, x: Tensor) -> list[Any]:
    """The result, and the state and gradients after one step."""
    out = module(x.clone())
    out.square().sum().backward()
    named = sorted([*module.named_parameters(), *module.named_buffers()])
    return [out, *((name, t.detach(), t.grad) for name, t in named)]


@pytest.mark.parametrize("name", KEPT)
def test_unflatten(name: str) -> None:
    """One training step of the module that unflatten gives is eager's, as torch's own is."""
    kind, paths = KEPT[name]
    sizes = ({0: Dim.AUTO},) if name == "open sizes" else None
    eager = trained(made(kind), X)
    for export in EXPORTS:
        program = export(
            made(kind), (X,), preserve_module_call_signature=paths, dynamic_shapes=sizes
        )
        assert list(differences(eager, trained(unflatten(program), X), "")) == []
        if sizes:
            other = torch.randn(6, 4)
            assert torch.equal(unflatten(program)(other), made(kind)(other))


def test_module_call_graph_as_torch() -> None:
    """The conventions that are kept are torch's: paths, nesting, constants.

    Of a second call of one module only ours has an entry, under `path@1`.
    """
    for kind, paths in KEPT.values():
        ours, torchs = (
            [
                entry
                for entry in export(
                    made(kind), (X,), preserve_module_call_signature=paths
                ).module_call_graph
                if "@" not in entry.fqn
            ]
            for export in EXPORTS
        )
        assert [entry.fqn for entry in ours] == [entry.fqn for entry in torchs]
        for left, right in zip(ours[1:], torchs[1:], strict=True):
            assert (left.signature is None) == (right.signature is None), left.fqn
            if left.signature is not None and right.signature is not None:
                assert left.signature.in_spec == right.signature.in_spec
                assert left.signature.out_spec == right.signature.out_spec
                kinds = [
                    [type(spec).__name__ for spec in (*side.inputs, *side.outputs)]
                    for side in (left.signature, right.signature)
                ]
                assert kinds[0] == kinds[1]


def test_a_kept_submodule_is_called_as_before() -> None:
    """By its own signature, with other tensors; and another one can be put in its place."""
    for export in EXPORTS:
        eager = made(Outer)
        program = export(made(Outer), (X,), preserve_module_call_signature=("inner",))
        whole: Any = unflatten(program)
        other = torch.randn(3, 4), {"bias": torch.randn(3, 4)}
        named = {"scale": 2.0, "mask": torch.rand(3, 4) > 0.5}
        left, right = (each.inner(*other, **named) for each in (eager, whole))
        assert list(differences(left, right, "")) == []
        whole.inner = eager.inner
        assert torch.equal(whole(X), eager(X))


def test_no_such_submodule() -> None:
    with pytest.raises(foretrace.Refusal) as caught:
        foretrace.export(made(Outer), (X,), preserve_module_call_signature=("missing",))
    assert caught.value.kind == "wrong call"
    check(caught.value)


# ---- other tools ---------------------------------------------------------------------------------


def linear_by_hand(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    found = x @ weight.transpose(0, 1)
    return found if bias is None else found + bias


TABLES: dict[str, Callable[[], Any]] = {
    "empty": dict,
    "of torch": torch.export.default_decompositions,
    "of the user": lambda: {torch.ops.aten.linear.default: linear_by_hand},
    "one left out": lambda: {
        op: entry for op, entry in torch.export.default_decompositions().items()
        if op is not torch.ops.aten.layer_norm.default
    },
}  # fmt: skip


def targets(program: ExportedProgram) -> set[str]:
    return {str(node.target) for node in program.graph.nodes if node.op == "call_function"}


@pytest.mark.parametrize("table", some(2, TABLES, 1))
def test_decompositions(table: str) -> None:
    """A table opens ours as it opens torch's: the same operators, the same bits."""
    ours, torchs = (export(made(Stack), (X,)) for export in EXPORTS)
    ours, torchs = (each.run_decompositions(TABLES[table]()) for each in (ours, torchs))
    assert targets(ours) == targets(torchs)
    assert torch.equal(ours.module()(X), torchs.module()(X))
    again = ours.run_decompositions({})
    assert torch.equal(again.module()(X), torchs.module()(X))


def test_copies() -> None:
    """A copy trains as the program does, and shares nothing with it."""
    for export in EXPORTS:
        program = export(made(Outer), (X,))
        expected = trained(made(Outer), X)
        for copied in (copy.deepcopy(program).module(), copy.deepcopy(program.module())):
            assert list(differences(expected, trained(copied, X), "")) == []
        assert program.state_dict["inner.calls"] == 0


def test_exported_again() -> None:
    """The module that comes out goes in again, here and there."""
    eager = trained(made(Outer), X)
    for first in EXPORTS:
        for second in EXPORTS:
            again = second(first(made(Outer), (X,)).module(), (X,))
            found = trained(again.module(), X)
            assert torch.equal(found[0], eager[0])
            assert [t for _, _, t in found[1:]].count(None) == 1  # the buffer's


class Doubles(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x *= 2.0
        return self.second(x).relu()


def test_exported_again_with_the_metadata_of_before() -> None:
    """Lines, modules and `custom` of the nodes of a graph that is the program, and its own."""
    x = torch.randn(2, 3)
    before = foretrace.export(Doubles(), (x,))
    graph = copy.deepcopy(before.graph_module)
    graph.meta["custom"] = {"whole": 1}
    tagged = next(n for n in graph.graph.nodes if n.target is torch.ops.aten.linear.default)
    tagged.meta["custom"] = {"tag": "int8"}
    after = foretrace.export(before._update(graph, before.graph_signature).module(), (x,))
    assert after.graph_module.meta["custom"] == {"whole": 1}
    assert [n.meta.get("custom") for n in after.graph.nodes if "custom" in n.meta] == [
        {"tag": "int8"}
    ]
    for name in ("stack_trace", "nn_module_stack"):
        one, other = ([n.meta.get(name) for n in e.graph.nodes] for e in (before, after))
        assert one == other
    (written,) = (n for n in after.graph.nodes if n.target is torch.ops.aten.mul.Tensor)
    assert written.meta["stack_trace"].endswith("in forward\n    x *= 2.0\n")


class Row(nn.Module):
    def forward(self, n: Tensor, x: Tensor) -> Tensor:
        number = n.item()
        torch._check(number < x.size(0))
        return x[:number]


class TwoRows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = Row(), Row()

    def forward(self, n: Tensor, x: Tensor) -> Tensor:
        return self.one(n, x) + self.other(n, x) * 2


def test_unflatten_with_conditions_inside_of_modules() -> None:
    """Each is asserted in the module that computes the number."""
    call = torch.tensor(3), torch.randn(10)
    shapes = {"n": None, "x": (torch.export.Dim("rows"),)}
    exported = foretrace.export(TwoRows(), call, dynamic_shapes=shapes)
    again = torch.export.unflatten(exported)
    assert torch.equal(again(*call), TwoRows()(*call))


class CreatesAModule(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.ReLU()(x) * x


def test_a_module_that_the_program_creates_is_in_no_stack() -> None:
    exported = foretrace.export(CreatesAModule(), (torch.randn(3),))
    stacks = [n.meta["nn_module_stack"] for n in exported.graph.nodes if n.op == "call_function"]
    assert [[path for path, _ in each.values()] for each in stacks] == [[""], [""]]


class Plain(nn.Module):
    """Attention, a norm in eval, a buffer, a dict and None among the results."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.BatchNorm1d(4), nn.MultiheadAttention(4, 2, batch_first=True)
        self.register_buffer("offset", torch.ones(4))

    def forward(self, x: Tensor) -> Any:
        y = (self.norm(x) + self.offset)[None]
        return self.mix(y, y, y, need_weights=False)[0], {"sum": x.sum(), "none": None}


def test_onnx() -> None:
    """torch.onnx.export gives the same operators, and outputs as near to eager as torch's."""
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name)
    torch.manual_seed(0)
    module = Plain().eval()
    models = [
        torch.onnx.export(export(module, (X,), dynamic_shapes=({0: Dim("rows", max=64)},)))
        for export in EXPORTS
    ]
    ours, torchs = ([node.op_type for node in each.model.graph] for each in models)  # type: ignore[union-attr]
    assert ours == torchs
    reference = importlib.import_module("onnx.reference")
    for x in (X, torch.randn(5, 4)):
        expected = [t.detach() for t in pytree.tree_leaves(module(x)) if t is not None]
        run = reference.ReferenceEvaluator(models[0].model_proto)  # type: ignore[union-attr]
        found = run.run(None, {run.input_names[0]: x.numpy()})
        for left, right in zip(found, expected, strict=True):
            assert torch.allclose(torch.tensor(left), right, atol=1e-6)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("open_rows", [False, True])
def test_aot_inductor(tmp_path: Path, *, open_rows: bool) -> None:
    """aoti_compile_and_package: the same numbers from ours as from torch's, twice, with writes."""
    sizes = ({0: Dim("rows", max=64)},) if open_rows else None
    found: list[Any] = []
    for number, export in enumerate(EXPORTS):
        program = export(made(Outer), (X,), dynamic_shapes=sizes)
        package = torch._inductor.aoti_compile_and_package(
            program, package_path=str(tmp_path / f"{number}.pt2")
        )
        run: Any = torch._inductor.aoti_load_package(package)
        found.append([run(x) for x in (X, X, *([torch.randn(5, 4)] if open_rows else []))])
    eager = made(Outer)
    with torch.no_grad():
        expected = [eager(X), eager(X)]
    for ours, torchs in zip(*found, strict=True):
        assert torch.allclose(ours, torchs)
    for ours, left in zip(found[0], expected, strict=False):
        assert torch.allclose(ours, left, atol=1e-6)


class Swaps(nn.Module):
    """Each buffer is bound to what the other one was, and the old one is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.zeros(2))
        self.register_buffer("b", torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        old = self.a
        self.a, self.b = self.b + x, self.a
        return old


def test_swapped_buffers() -> None:
    """What one buffer is bound to is read before the other one is written."""
    ran, x = Swaps(), torch.ones(2)
    module = foretrace.export(copy.deepcopy(ran), (x,)).module()
    for _ in range(3):
        assert torch.equal(module(x), ran(x))
        assert all(map(torch.equal, module.buffers(), ran.buffers()))


def test_a_float_of_data_in_a_file_that_is_decomposed() -> None:
    """Who reads the file counts its own symbols from those of the file on."""

    class Scales(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (x.sum().item() + 1.0)

    x, file = torch.randn(3), io.BytesIO()
    torch.export.save(foretrace.export(Scales(), (x,)), file)
    file.seek(0)
    again = torch.export.load(file).run_decompositions()
    assert torch.equal(again.module()(x), Scales()(x))
