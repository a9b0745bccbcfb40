"""`foretrace.dispatch` against the dispatcher itself, for every operator that is registered."""

import json

import pytest
import torch

import foretrace
from foretrace import torch_api
from foretrace.inspect.dispatcher.names import MODES
from foretrace.inspect.dispatcher.registrations import Kernel, computed, fallbacks, registered
from foretrace.inspect.dispatcher.rules import (
    AMBIGUOUS,
    AUTOGRAD,
    BATCHED,
    DIRECT,
    EXPLICIT,
    EXPLICIT_NON_FUNCTIONAL,
    FALLBACK,
    IMPLICIT,
    MISSING,
    NESTED,
    rule_at,
)
from foretrace.inspect.dispatcher.table import Table, built_with
from foretrace.operators.targets.build import build_named
from tests.support.turns import crossed, some

OPERATORS = sorted(torch_api.operator_names())
ATEN = [name for name in OPERATORS if name.startswith("aten::")]
KEYS = (torch_api.UNDEFINED, *torch_api.key_names())
TAGS: dict[str, str] = {
    DIRECT: "kernel",
    EXPLICIT_NON_FUNCTIONAL: "default backend kernel",
    EXPLICIT: "default backend kernel",
    NESTED: "nested kernel",
    IMPLICIT: "math kernel",
    AMBIGUOUS: "ambiguous autogradother",
    AUTOGRAD: "autograd kernel",
    BATCHED: "batched kernel",
    FALLBACK: "backend fallback",
}
"""The tag of each rule in the dispatcher's own table"""
NO_CUDA = pytest.mark.skipif(built_with("cuda"), reason="the build is the profile")


def overload(name: str):
    space, _, rest = name.partition("::")
    packet, _, which = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, space), packet), which or "default")


@pytest.mark.slow
def test_every_row_of_every_table() -> None:
    """The rule, the kernel and its place are the dispatcher's at each of the 137 keys."""
    every, wrong = fallbacks(), []
    for name in OPERATORS:
        has, table = registered(name), computed(name)
        for key in KEYS:
            rule, source = rule_at(key, has, every)
            row = table.get(key)
            if rule == MISSING or row is None:
                same = rule == MISSING and row is None
            else:
                kernel = has.get(source) or every.get(source)
                same = row.tag == TAGS[rule] and (rule == AMBIGUOUS or _same(kernel, row.kernel))
            if not same:
                wrong.append((name, key, rule, source, row))
    assert len(OPERATORS) > 3000
    assert not wrong[:5]


def _same(left: Kernel | None, right: Kernel) -> bool:
    if left is None:
        return False
    facts = ((k.file, k.line, k.fallthrough) for k in (left, right))
    return len(set(facts)) == 1


def test_a_table_that_is_wrong_is_seen() -> None:
    """The test above can fail: without the fallbacks, or with a kernel that is not there."""
    has, every = registered("aten::mul.Tensor"), fallbacks()
    assert rule_at("Functionalize", has, {}) != rule_at("Functionalize", has, every)
    assert rule_at("XLA", {*has, "XLA"}, every) != rule_at("XLA", has, every)


DEVICES = crossed(["cpu", "meta"], [False, True])
SHARES = [pytest.param(8, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)]
"""Of so many operators one"""


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize(("device", "requires_grad"), DEVICES)
def test_a_call_of_every_operator(device: str, requires_grad: bool, share: int) -> None:
    """A call goes where the table says: rules and places along its way, and a kernel at its end."""
    for name in ATEN[::share]:
        table = computed(name)
        told = foretrace.dispatch(name, device=device, requires_grad=requires_grad)
        assert told.path, name
        for step in told.path:
            if step.served.rule == MISSING:
                assert step.key not in table, (name, step)
                continue
            row = table[step.key]
            assert (row.tag, row.kernel.place) == (TAGS[step.served.rule], step.place), (name, step)
            if step.key != torch_api.UNDEFINED:
                assert torch_api.has_computed_kernel(name, step.key)
        passed = [step for step in told.steps if step.served.falls]
        assert all(table[step.key].kernel.fallthrough for step in passed), name


def test_the_python_resolver_is_torchs() -> None:
    every = fallbacks()
    for name in ATEN:
        op = overload(name)
        table = Table(op, every)
        for key in ("CPU", "Meta", "AutogradCPU", "AutogradMeta", "Functionalize", "AutocastCPU"):
            answer = table.in_python(key)
            try:
                assert torch_api.python_resolution(op, key) == answer.source, (name, key)
            except NotImplementedError:
                assert answer.rule == MISSING, (name, key)
            except RuntimeError:
                assert answer.rule == AMBIGUOUS, (name, key)


@pytest.mark.slow
@NO_CUDA
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("requires_grad", some(2, [False, True]))
def test_the_profile_of_cuda(requires_grad: bool, share: int) -> None:
    """A CUDA build's own kernels come first; at every other key it has what this build has."""
    for name in ATEN[::share]:
        told = foretrace.dispatch(name, device="cuda", requires_grad=requires_grad)
        last = told.path[-1]
        if "CUDA" in build_named("cuda").kernels.get(name, ()) and last.key == "CUDA":
            assert (last.served.rule, last.served.source) == ("direct", "CUDA")
        here = computed(name)
        for step in told.path[:-1]:
            if "Autograd" not in step.key:
                assert step.place == here[step.key].kernel.place


@NO_CUDA
def test_what_a_cuda_build_changes_for_autograd() -> None:
    """Of all operators, those that CUDA keeps whole: autograd sees them there, not on the CPU."""
    changed = {
        name
        for name in build_named("cuda").kernels
        if name in ATEN and _autograd_rule(name, "cuda") != computed(name)["AutogradCUDA"].tag
    }
    assert changed == {"aten::_fused_rms_norm", "aten::mish_backward", "aten::silu_backward"}


def _autograd_rule(name: str, device: str) -> str:
    (step,) = foretrace.dispatch(name, device=device, key="AutogradCUDA").steps
    return TAGS[step.served.rule]


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_keys_are_those_of_real_operands(device: str, requires_grad: bool) -> None:
    x = torch.ones(2, device=device, requires_grad=requires_grad)
    real = foretrace.dispatch("mul.Tensor", args=(x, x)).to_dict()
    told = foretrace.dispatch("mul.Tensor", device=device, requires_grad=requires_grad).to_dict()
    assert real["keys"] == told["keys"]
    assert real["requires_grad"] == requires_grad


def test_where_a_key_comes_from() -> None:
    x = torch.ones(2)
    sparse = torch.eye(2).to_sparse()
    keys = {key.name: key for key in foretrace.dispatch("mm", args=(sparse, x.expand(2, 2))).keys}
    assert keys["SparseCPU"].sources == ("self",)
    assert keys["CPU"].sources == ("mat2",)
    assert keys["BackendSelect"].sources == ("the thread",)
    assert keys["AutocastCPU"].excluded


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_leaves_torch_as_it_was(mode: str) -> None:
    before = str(torch_api.thread_keys()), torch.is_grad_enabled()
    foretrace.dispatch("mul.Tensor", mode=mode, requires_grad=True)
    assert (str(torch_api.thread_keys()), torch.is_grad_enabled()) == before


@pytest.mark.parametrize(
    ("mode", "first"),
    [
        ((), "AutogradCPU"),
        ("no_grad", "AutogradCPU"),
        ("inference", "CPU"),
        ("autocast", "AutocastCPU"),
        ("torch_dispatch", "PythonTLSSnapshot"),
        ("fake", "PythonTLSSnapshot"),
        ("functionalize", "AutogradCPU"),
        ("vmap", "FuncTorchDynamicLayerFrontMode"),
        ("python_dispatcher", "PythonDispatcher"),
        (("fake", "python_dispatcher"), "PythonDispatcher"),
    ],
)
def test_modes(mode, first: str) -> None:
    assert foretrace.dispatch("mm", mode=mode).path[0].key == first


@pytest.mark.parametrize("name", ["mul.Tensor", "mm", "matmul", "nextafter", "sort"])
def test_vmap_is_as_its_trace(name: str) -> None:
    """The first keys that a mapped call comes to, and by which rule, are those of its trace."""
    op = overload(f"aten::{name}")
    args = [torch.ones(2, 3, 3)] * (1 if name == "sort" else 2)
    rows = foretrace.dispatch_trace(torch.vmap(op), *args).rows
    first = [(row.key, row.served.rule) for row in rows if row.op == op.name()][:2]
    path = foretrace.dispatch(op, mode="vmap").path
    assert [(step.key, step.served.rule) for step in path] == first
    assert [key for key, _ in first] == ["FuncTorchDynamicLayerFrontMode", "FuncTorchBatched"]


def test_why_meta_keeps_rms_norm_whole_in_python_alone() -> None:
    """The second thread's question: C++ takes it apart above autograd, Python does not."""
    plain = foretrace.dispatch("_fused_rms_norm", device="meta", requires_grad=True)
    assert [step.served.rule for step in plain.path] == ["composite implicit"]
    (first, *_) = [step for step in plain.steps if not step.agrees]
    assert (first.key, first.python.rule) == ("AutogradMeta", "autograd")
    asked = foretrace.dispatch(
        "_fused_rms_norm", device="meta", requires_grad=True, mode="python_dispatcher"
    )
    rules = {step.key: step.served.rule for step in asked.path}
    assert rules["AutogradMeta"] == "autograd"
    assert asked.path[-1].place.startswith("torch/_decomp/decompositions.py:")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"op": "aten::mull.Tensor"}, "near it are aten::mul.Tensor"),
        ({"op": "rms_nrom"}, "aten::rms_norm"),
        ({"op": "aten::mul.Tensr"}, "aten::mul.Tensor"),
        ({"op": "aten::mul"}, "name one: aten::mul.Tensor"),
        ({"op": "mm", "mode": "inferense"}, "near it is inference"),
        ({"op": "mm", "key": "AutogradCUDAA"}, "near it are AutogradCUDA"),
        ({"op": "mm", "device": "tpuu"}, "name one of: cpu, meta"),
    ],
)
def test_what_is_not_there(given, told: str) -> None:
    with pytest.raises(foretrace.Refusal) as raised:
        foretrace.dispatch(given.pop("op"), **given)
    assert told in str(raised.value)


def test_it_can_be_written_as_json() -> None:
    told = foretrace.dispatch("rms_norm", device="cuda:sm90", requires_grad=True).to_dict()
    assert json.loads(json.dumps(told)) == told
