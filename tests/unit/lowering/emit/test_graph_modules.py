"""A cut's graph module: its code waits, its nodes and fake tensors are as torch makes them."""

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import foretrace
from foretrace import torch_api

X = torch.randn(3, 4)


def module() -> fx.GraphModule:
    def two(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.relu() @ x.T, x.sum(1)

    return foretrace.capture(two, (X,)).cut("aten").graph_module


def by_torch(graph_module: fx.GraphModule) -> fx.GraphModule:
    """The same graph in the class that torch has for it."""
    return fx.GraphModule(graph_module, copy.deepcopy(graph_module.graph))


@pytest.mark.parametrize("look", [
    lambda m: m.code,
    lambda m: str(inspect.signature(m.forward)),
    lambda m: m.forward.__code__.co_varnames,
    lambda m: m.print_readable(print_output=False).partition("\n")[2],
    lambda m: [t.tolist() for t in m(X)],
    lambda m: [t.tolist() for t in copy.deepcopy(m)(X)],
    lambda m: m.recompile().src,
])  # fmt: skip
def test_whoever_looks_first_sees_what_torch_writes(look: Callable[[Any], Any]) -> None:
    made = module()
    expected = look(by_torch(made))
    assert "_code" not in vars(made)
    assert look(made) == expected


def test_an_edited_graph_runs_as_it_is_recompiled() -> None:
    made = module()
    relu = next(n for n in made.graph.nodes if n.target == torch.ops.aten.relu.default)
    relu.target = torch.ops.aten.neg.default
    made.recompile()
    assert torch.equal(made(X)[0], -X @ X.T)


def test_a_pickled_one_gives_the_same() -> None:
    made = module()
    for node in made.graph.nodes:
        node.meta.clear()
    again = pickle.loads(pickle.dumps(made))  # noqa: S301 - our own
    assert all(map(torch.equal, again(X), made(X)))


def test_a_pass_finds_nodes_and_gets_names_that_are_free() -> None:
    graph = module().graph
    (mm,) = graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)
    with graph.inserting_after(mm):
        names = [graph.create_node("call_function", mm.target, mm.args, {}, "mm").name
                 for _ in range(2)]  # fmt: skip
    graph.lint()
    assert len({mm.name, *names}) == 3


def test_a_name_like_a_builtin_is_the_one_torch_gives() -> None:
    def program(input: Tensor, abs: Tensor) -> Tensor:
        return torch.abs(input) + abs.sum()

    graph = foretrace.capture(program, (X, X)).cut("aten").graph_module.graph
    again = fx.Graph()
    again.graph_copy(graph, {})
    assert [n.name for n in again.nodes] == [n.name for n in graph.nodes if n.op != "output"]


def test_fake_tensors_hold_what_torch_gives_them() -> None:
    """The second of a device is made as a copy of what the first holds."""
    mode = torch_api.fake_mode(None)
    mode._allow_unsafe_data_ptr_access = False
    made = torch_api.FakeTensors(mode)
    meta = torch.empty_strided((2, 3), (1, 2), dtype=torch.bfloat16, device="meta")
    for device in ("cpu", "cuda:0"):
        label = torch.device(device)
        made.make(torch.empty(1, device="meta"), label)
        ours, theirs = made.make(meta, label), torch_api.FakeTensor(mode, meta, label)
        assert vars(ours) == vars(theirs)
        assert type(ours) is type(theirs)
        for fact in ("device", "dtype", "shape", "requires_grad", "layout", "is_leaf"):
            assert getattr(ours, fact) == getattr(theirs, fact)
        assert ours.stride() == theirs.stride()
        assert repr(ours) == repr(theirs)
        with pytest.raises(RuntimeError, match="data"):
            ours.untyped_storage().data_ptr()


def test_a_memo_of_one_fake_tensor_is_not_that_of_another() -> None:
    made = torch_api.FakeTensors(torch_api.fake_mode(None))
    one, other = (made.make(torch.empty(2, device="meta"), torch.device("cpu")) for _ in range(2))
    vars(one)["_nonzero_memo"] = 7
    assert vars(other)["_nonzero_memo"] is None
    third = made.make(torch.empty(2, device="meta"), torch.device("cpu"))
    assert vars(third)["_nonzero_memo"] is None


def test_a_kept_module_call_has_code_when_it_is_called() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    cut = foretrace.capture(model, (X,)).cut("aten", keep="0")
    inner = next(
        m for name, m in cut.graph_module.named_children() if isinstance(m, fx.GraphModule)
    )
    assert "linear" in inner.code or "addmm" in inner.code
    assert torch.equal(cut(X), model(X))


def test_nodes_are_found_by_what_they_call() -> None:
    def several(x: Tensor) -> tuple[Tensor, ...]:
        return (*x.relu().neg().split(2), x.neg() + 1)

    graph = foretrace.capture(several, (X,)).cut("aten").graph_module.graph
    for node in graph.nodes:
        called = node.op == "call_function"
        found = graph.find_nodes(op=node.op, target=node.target if called else None, sort=False)
        alike = [n for n in graph.nodes if n.op == node.op]
        assert found == [n for n in alike if not called or n.target is node.target]
    assert len(graph.find_nodes(op="call_function", target=torch.ops.aten.neg.default)) == 2
