"""`meta["val"]` waits until somebody reads one, and is then as if it had been there."""

import copy
import inspect
import json
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.passes.shape_prop import TensorMetadata, _extract_tensor_metadata
from torch.utils._pytree import tree_map

import foretrace
from foretrace.lowering.cuts.dead_code import needs
from foretrace.lowering.emit.fake_vals import Meta, Waiting
from foretrace.lowering.emit.fx import to_fx

X = torch.randn(3, 4)


def program(x: Tensor) -> Tensor:
    return (x @ x.T).relu()


def node(dynamic: bool | None = None) -> fx.Node:
    """Of a module that nobody has looked at; tests verify what `graph_module` gives."""
    captured = foretrace.capture(program, (X,), dynamic_shapes=dynamic)
    made = captured.cut("aten").graph, captured.recorded.symbols, captured.semantics.fakes
    module = inspect.unwrap(to_fx)(*made, needs)
    found: fx.Node = module.graph.find_nodes(
        op="call_function", target=torch.ops.aten.relu.default
    )[0]
    return found


READERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "[]": lambda m: m["val"],
    "get": lambda m: m.get("val"),
    "items": lambda m: dict(list(m.items()))["val"],
    "values": lambda m: next(v for v in m.values() if isinstance(v, Tensor)),
    "pop": lambda m: m.pop("val"),
    "setdefault": lambda m: m.setdefault("val", None),
    "copy": lambda m: m.copy()["val"],
    "copy.copy": lambda m: copy.copy(m)["val"],
    "dict": lambda m: dict(m)["val"],
    "**": lambda m: {**m}["val"],
    "call": lambda m: _given(**m)["val"],
    "update": lambda m: _updated(m)["val"],
    "|": lambda m: (m | {"other": 1})["val"],
    "r|": lambda m: ({"other": 1} | m)["val"],
    "pytree": lambda m: tree_map(lambda leaf: leaf, m)["val"],
    "match": lambda m: _matched(m),  # noqa: PLW0108 - it is below
}


BESIDE: dict[str, Callable[[dict[str, Any]], Any]] = {
    **READERS,
    "[]": lambda m: m["tensor_meta"],
    "get": lambda m: m.get("val", m.get("tensor_meta")),
}


def _given(**given: Any) -> dict[str, Any]:
    return given


def _updated(meta: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    plain.update(meta)
    return plain


def _matched(meta: dict[str, Any]) -> Any:
    match meta:
        case {"val": val}:
            return val


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_whoever_reads_gets_the_fake_tensor(read: Callable[[dict[str, Any]], Any]) -> None:
    meta = node().meta
    assert type(meta) is Waiting
    assert "val" in meta
    assert "val" in set(meta)
    found = read(meta)
    assert type(found) is FakeTensor
    assert (found.shape, found.stride(), found.device.type) == ((3, 3), (3, 1), "cpu")


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", ["[]", "get", "items", "copy", "**", "update"])
def test_what_torch_keeps_beside_it_waits_too(name: str, dynamic: bool | None) -> None:
    found = node(dynamic).meta
    assert type(found) is Waiting
    assert "tensor_meta" in found
    BESIDE[name](found)
    assert type(found) is Meta
    for each in node(dynamic).graph.nodes:
        if each.op != "output" and isinstance(each.meta["val"], Tensor):
            known = _extract_tensor_metadata(each.meta["val"])
            assert type(each.meta["tensor_meta"]) is TensorMetadata
            assert str(each.meta["tensor_meta"]) == str(known)


def test_all_are_made_at_once_and_are_what_they_were() -> None:
    found = node()
    graph = found.graph
    metas = [each.meta for each in graph.nodes if each.op != "output"]
    val = found.meta["val"]
    assert all(type(meta) is Meta for meta in metas)
    assert found.meta["val"] is val
    assert len({id(meta["val"].untyped_storage()) for meta in metas}) == len(metas)


def test_what_says_nothing_of_it_makes_none() -> None:
    meta = node().meta
    assert meta["foretrace"].target is torch.ops.aten.relu.default
    assert "test_vals.py" in meta.get("stack_trace", "")
    assert meta.get("other") is None
    assert len(meta) == len(list(meta)) == len(meta.keys())
    assert json.dumps(list(meta))
    assert type(meta) is Waiting


def test_one_that_was_set_stays() -> None:
    first, second = node().meta, node().meta
    first["val"] = "mine"
    second.update(val="mine")
    assert (first["val"], second["val"]) == ("mine", "mine")
    del first["val"]
    assert first.get("val") is None


def test_modes_of_the_reader_change_nothing() -> None:
    expected = node().meta["val"]

    class Doubles(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
            raise AssertionError(func)

    readers = [
        Doubles(), FakeTensorMode(), torch.inference_mode(), torch.no_grad(),
        torch.device("meta"), torch.autocast("cpu", torch.bfloat16),
    ]  # fmt: skip
    for mode in readers:
        meta = node().meta
        with mode:
            found = meta["val"]
        assert (found.dtype, found.device, found.shape) == (
            expected.dtype, expected.device, expected.shape
        )  # fmt: skip
        assert not found.is_inference()
        assert found.fake_mode is not mode


def test_open_sizes_are_the_same_symbols() -> None:
    found = node(dynamic=True)
    (x,) = found.graph.find_nodes(op="placeholder")[:1]
    rows = x.meta["val"].shape[0]
    assert isinstance(rows, torch.SymInt)
    assert found.meta["val"].shape == (rows, rows)


def test_two_threads_get_one() -> None:
    meta, found = node().meta, list[Any]()
    threads = [threading.Thread(target=lambda: found.append(meta["val"])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("read", [False, True])
def test_copied_and_pickled_as_a_plain_dict(read: bool) -> None:
    meta = node().meta
    if read:
        assert meta["val"] is not None
    meta.pop("foretrace")
    shallow = copy.copy(meta)
    with shallow["val"].fake_mode:
        deep = copy.deepcopy(meta)
    assert type(shallow) is type(deep) is dict
    assert shallow == meta == dict(meta)
    assert type(deep["val"]) is FakeTensor
    meta.pop("val")
    again = pickle.loads(pickle.dumps(meta))  # noqa: S301 - our own
    assert (type(again), again) == (dict, dict(meta))


def test_a_copied_graph_has_them() -> None:
    found = node()
    graph = copy.deepcopy(found.graph)
    assert all(isinstance(n.meta["val"], Tensor) for n in graph.nodes if n.op != "output")
    assert repr(found.meta).count("FakeTensor(") == 1
