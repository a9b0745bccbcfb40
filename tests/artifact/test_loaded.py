"""A loaded program as a module: its state, its calls, what it returns."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import foretrace
from foretrace.frontends.program.load import Loaded
from tests.support.bits import aliasing, differences, same_bits, tensors
from tests.support.saved import same_explanations


def loaded(fn: Any, *args: Any, path: Path, cuts: tuple[Any, ...] = (), **options: Any) -> Loaded:
    foretrace.capture(fn, args).save(path / "saved.ft", *cuts)
    return foretrace.load(path / "saved.ft", **options)


def refusal(call: Any) -> foretrace.Refusal:
    with pytest.raises(foretrace.Refusal) as caught:
        call()
    return caught.value


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4).t())
        self.frozen = nn.Parameter(torch.randn(4), requires_grad=False)
        self.absent: nn.Parameter | None
        self.register_parameter("absent", None)
        self.register_buffer("count", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("mask", torch.ones(4), persistent=False)
        self.register_buffer("nothing", None)

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        return (x * self.mask + self.frozen) @ self.weight


class Model(nn.Module):
    """Modules and tensors at several places, memory that two buffers share, names of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = Inner()
        self.again = self.cut
        self.head = nn.Linear(6, 4)
        self.tied = nn.Linear(6, 4)
        self.tied.weight = self.head.weight
        memory = torch.randn(10)
        self.register_buffer("left", memory[:6])
        self.register_buffer("right", memory[2:8])
        self.register_buffer("wave", torch.randn(4, dtype=torch.complex64).conj())

    def forward(self, x: Tensor) -> Tensor:
        y = self.again(self.cut(x) @ self.head.weight.t() + self.wave.real)
        return (y + self.left * self.right) @ self.tied.weight.t() + self.head.bias


def test_the_state_is_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Model(), torch.randn(3, 4)
    found = loaded(model, x, path=tmp_path)
    for names in ("named_parameters", "named_buffers", "named_modules"):
        pairs = [
            [name for name, _ in getattr(each, names)(remove_duplicate=False)]
            for each in (model, found)
        ]
        assert pairs[0] == pairs[1]
    mine, theirs = model.state_dict(keep_vars=True), found.state_dict(keep_vars=True)
    assert list(differences(dict(mine), dict(theirs), "state")) == []
    assert [p.requires_grad for p in model.parameters()] == [
        p.requires_grad for p in found.parameters()
    ]
    assert aliasing([], tensors(dict(mine))) == aliasing([], tensors(dict(theirs)))
    assert nn.Module.__repr__(found).startswith("Model(\n  (cut): Inner()")
    assert torch.equal(found(x), model(x))
    assert torch.equal(dict(found.named_buffers())["cut.count"], model.cut.count)


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.bfloat16, torch.float16, torch.complex128, torch.float8_e4m3fn,
     torch.float8_e8m0fnu, torch.int16, torch.uint16, torch.bool],
)  # fmt: skip
@pytest.mark.parametrize(
    "lay", [lambda t: t, lambda t: t.t(), lambda t: t[:, ::2], lambda t: t[1:]]
)
def test_every_bit_of_a_tensor(dtype: torch.dtype, lay: Any, tmp_path: Path) -> None:
    memory = torch.randint(0, 256, (6, 4 * dtype.itemsize), dtype=torch.uint8)
    memory = memory % 2 if dtype is torch.bool else memory
    kept = lay(memory.view(dtype))
    model = nn.Module()
    model.register_buffer("kept", kept)
    model.forward = lambda x: x * 2  # type: ignore[method-assign]
    found = loaded(model, torch.ones(2), path=tmp_path).kept
    assert (found.stride(), found.storage_offset()) == (kept.stride(), kept.storage_offset())
    assert found.dtype is dtype
    one, other = (t.contiguous().view(torch.uint8) for t in (found, kept))
    assert torch.equal(one, other)
    assert found.untyped_storage().nbytes() == kept.untyped_storage().nbytes()


def test_parameters_beside(tmp_path: Path) -> None:
    model, x = nn.Linear(64, 64), torch.randn(2, 64)
    program = foretrace.capture(model, (x,))
    program.save(tmp_path / "model.ft", parameters="beside")
    assert (tmp_path / "model.ft").stat().st_size < 64 * 64
    assert torch.equal(foretrace.load(tmp_path / "model.ft")(x), model(x))
    safetensors = pytest.importorskip("safetensors.torch")
    named = safetensors.load_file(tmp_path / "model.safetensors")
    assert list(differences(dict(sorted(model.state_dict().items())), named, "")) == []


# ------------------------------------------------------------------------------- another state


def test_the_state_of_another_model_is_refused(tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    found = loaded(nn.Sequential(nn.Linear(4, 3)), x, path=tmp_path)
    before = copy.deepcopy(found.state_dict())
    for other, told in (
        (nn.Sequential(nn.Linear(4, 3, bias=False)), "0.bias"),
        (nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3)), "1.weight"),
        (nn.Sequential(nn.Linear(4, 5)), "0.weight is float32[5, 4], in the artifact"),
        (nn.Sequential(nn.Linear(4, 3).double()), "float64"),
    ):
        caught = refusal(lambda other=other: found.load_state_dict(other.state_dict()))
        assert caught.kind == "another state"
        assert told in caught.what
    assert list(differences(dict(before), dict(found.state_dict()), "")) == []
    same = nn.Sequential(nn.Linear(4, 3))
    found.load_state_dict(same.state_dict())
    assert torch.equal(found(x), same(x))


def test_a_call_with_the_state_of_another_model_is_refused(tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    found = loaded(nn.Sequential(nn.Linear(4, 3)), x, path=tmp_path, cuts=("export", "joint"))
    other = dict(nn.Sequential(nn.Linear(4, 5)).named_parameters())
    caught = refusal(lambda: torch.func.functional_call(found, other, (x,)))
    assert "0.weight" in caught.what
    found.get_submodule("0").weight = nn.Parameter(torch.randn(5, 4))
    caught = refusal(lambda: found.cut("joint")(x, tangents=[torch.ones(2, 3)]))
    assert "0.weight" in caught.what


# -------------------------------------------------------------------------------------- calls


def test_a_broken_guard_is_refused(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).train()
    found = loaded(model, torch.randn(2, 4), path=tmp_path)
    assert "size 0" in refusal(lambda: found(torch.randn(3, 4))).what
    assert "dtype" in refusal(lambda: found(torch.randn(2, 4).double())).what
    assert "nested" in refusal(lambda: found(torch.randn(2, 4), 1)).what
    found.eval()
    assert "eval() mode" in refusal(lambda: found(torch.randn(2, 4))).what


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.norm = nn.Linear(4, 3), nn.Linear(4, 3), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.norm(x)
        return self.one(x).sigmoid(), nn.functional.dropout(self.two(x).relu(), 0.5)


LOSSES = {
    "both": lambda a, b: a.square().sum() + b.mean(),
    "expanded": lambda a, b: a.sum() + b.sum(),
    "one": lambda a, b: a.pow(3).sum(),
    "turned": lambda a, b: (a.t() @ b).square().sum(),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("cuts", [("export",), ("pair",), ("joint",), ("aten",)])
def test_it_trains_as_eager(
    cuts: tuple[str, ...], loss: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the stored export cut, the stored pair, or an export cut of the tree."""
    torch.manual_seed(0)
    model, x = Heads(), torch.randn(5, 4, requires_grad=True)
    found = loaded(model, x, path=tmp_path, cuts=cuts)
    if cuts == ("pair",):
        monkeypatch.delattr(type(found.program), "cut")  # nothing is cut of the tree
    seen = []
    for each in (model, found):
        given = x.detach().clone().requires_grad_()
        torch.manual_seed(1)
        for _ in range(2):
            LOSSES[loss](*each(given)).backward()
        grads = {name: p.grad for name, p in each.named_parameters()}
        seen.append({"x": given.grad, **grads, **each.state_dict()})
    assert seen[0].keys() == seen[1].keys()
    for name, tensor in seen[0].items():
        other = seen[1][name]
        assert (tensor is None) == (other is None), name
        assert tensor is None or same_bits(tensor, other), name


def test_by_the_pair_nothing_is_followed_without_grad(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Heads(), torch.randn(5, 4)
    found = loaded(model, x, path=tmp_path, cuts=("pair",))
    with torch.no_grad():
        torch.manual_seed(1)
        first = model(x)
        torch.manual_seed(1)
        second = found(x)
    assert list(differences(first, second, "")) == []
    assert not any(each.requires_grad for each in second)


def test_tensors_from_outside_of_a_function(tmp_path: Path) -> None:
    w, scale = torch.randn(4, 3, requires_grad=True), torch.randn(3)

    def fn(x: Tensor) -> Tensor:
        return (x @ w * scale).sum()

    x = torch.randn(2, 4)
    found = loaded(fn, x, path=tmp_path)
    assert set(found.outside) == {"w", "scale"}
    found(x).backward()
    fn(x).backward()
    assert w.grad is not None
    assert found.outside["w"].grad is not None
    assert same_bits(w.grad, found.outside["w"].grad)


def test_modules_that_a_function_reaches(tmp_path: Path) -> None:
    one, two = nn.Linear(4, 4), nn.BatchNorm1d(4)
    x = torch.randn(3, 4)
    found = loaded(lambda x: two(one(x)), x, path=tmp_path)
    assert set(found.state_dict()) == {
        *(f"one.{name}" for name in one.state_dict()),
        *(f"two.{name}" for name in two.state_dict()),
    }
    assert torch.equal(found(x), two(one(x)))


def test_a_copy_is_refused(tmp_path: Path) -> None:
    found = loaded(nn.Linear(4, 3), torch.randn(2, 4), path=tmp_path)
    assert refusal(lambda: copy.deepcopy(found)).kind == "not copied"


# ----------------------------------------------------------------------------- what it returns


class Named(NamedTuple):
    logits: Tensor
    more: list[Tensor]


@dataclass
class Result:
    logits: Tensor
    name: str


def _named(x: Tensor) -> Named:
    return Named(x * 2, [x])


def _dataclass(x: Tensor) -> Result:
    return Result(x * 2, "r")


def test_classes_that_are_named_are_those(tmp_path: Path) -> None:
    x = torch.randn(3)
    for fn, kind in ((_named, Named), (_dataclass, Result)):
        found = loaded(fn, x, path=tmp_path, classes=[kind])
        assert found.missing_classes == ()
        assert type(found(x)) is kind
        assert list(differences(fn(x), found(x), "")) == []


def test_for_others_something_stands(tmp_path: Path) -> None:
    x = torch.randn(3)
    found = loaded(_named, x, path=tmp_path)
    assert found.missing_classes == (f"{__name__}.Named",)
    assert found(x)._fields == Named._fields
    assert torch.equal(found(x).logits, x * 2)
    found = loaded(_dataclass, x, path=tmp_path)
    assert found.missing_classes == (f"{__name__}.Result",)
    assert found(x).name == "r"
    assert torch.equal(found(x).logits, x * 2)
    assert "Result(logits=" in repr(found(x))


class Listed(list[Tensor]):
    name: str


def _listed(x: Tensor) -> Listed:
    made = Listed([x * 2, x + 1])
    made.name = "both"
    return made


def test_for_a_container_one_of_its_kind_stands(tmp_path: Path) -> None:
    x = torch.randn(3)
    found = loaded(_listed, x, path=tmp_path, classes=[Listed])
    assert type(found(x)) is Listed
    found = loaded(_listed, x, path=tmp_path)
    assert isinstance(found(x), list)
    assert found(x).name == "both"
    assert torch.equal(found(x)[1], x + 1)


def test_arguments_of_a_class_have_to_be_named(tmp_path: Path) -> None:
    def fn(given: Result) -> Tensor:
        return given.logits * 2

    x = Result(torch.randn(3), "r")
    foretrace.capture(fn, (x,)).save(tmp_path / "saved.ft")
    caught = refusal(lambda: foretrace.load(tmp_path / "saved.ft"))
    assert caught.kind == "unknown class"
    assert "Result" in caught.what
    found = foretrace.load(tmp_path / "saved.ft", classes=[Result])
    assert torch.equal(found(x), x.logits * 2)


# --------------------------------------------------------------------------------- wrong calls


def test_wrong_calls(tmp_path: Path) -> None:
    program = foretrace.capture(nn.Linear(4, 3), (torch.randn(2, 4),))
    other = foretrace.capture(nn.Linear(4, 3), (torch.randn(2, 4),))
    path = tmp_path / "saved.ft"
    assert refusal(lambda: program.save(path, "stair")).kind == "unknown cut"
    assert refusal(lambda: program.save(path, 1)).kind == "wrong call"  # type: ignore[arg-type]
    assert refusal(lambda: program.save(path, other.cut("export"))).kind == "wrong call"
    assert "two cuts" in refusal(lambda: program.save(path, "joint", program.cut("joint"))).what
    wrong: Any = "elsewhere"
    assert refusal(lambda: program.save(path, parameters=wrong)).kind == "wrong call"
    assert not path.exists()
    missing, same = tmp_path / "none" / "a.ft", tmp_path / "a.safetensors"
    assert refusal(lambda: program.save(missing)).kind == "not written"
    assert refusal(lambda: program.save(tmp_path)).kind == "not written"
    assert refusal(lambda: program.save(same, parameters="beside")).kind == "not written"
    assert not list(tmp_path.iterdir())
    program.save(path, "joint")
    found = foretrace.load(path)
    assert found.cuts == ("joint",)
    assert "it has joint" in refusal(lambda: found.cut("export")).do[0]


def test_a_stored_cut_is_asked_for_as_the_program_s(tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    program = foretrace.capture(nn.Sequential(nn.RMSNorm(4), Sum()), (x,))
    joint = program.cut("joint", loss=0, keep=["rms_norm", torch.ops.aten.sum])
    program.save(tmp_path / "a.ft", "export", joint, program.pair(loss=0, policy="save_all"))
    found = foretrace.load(tmp_path / "a.ft")
    stored = found.cut("joint")
    kept = [torch.ops.aten.sum, "rms_norm"]
    for asked in ({"loss": 0}, {"keep": kept}, {"open": ()}, {"loss": 0, "open": []}):
        assert found.cut("joint", **asked) is stored
    assert found.cut("export", loss=1) is found.cut("export")
    assert found.pair(loss=0, policy="save_all") == found.pair()
    for name, asked, made in (
        ("joint", {"loss": None}, "loss=0"),
        ("joint", {"loss": 1, "keep": ()}, "loss=0, keep=rms_norm, aten::sum"),
        ("joint", {"keep": [lambda op: True]}, "keep=rms_norm"),
        ("joint", {"decompositions": {}}, "decompositions=nothing"),
        ("forward", {"policy": "min_cut"}, "policy=save_all"),
    ):
        caught = refusal(lambda name=name, asked=asked: found.cut(name, **asked))
        assert caught.kind == "unknown cut"
        assert made in caught.what
    assert (
        'loaded.program.cut("joint", loss=None)'
        in refusal(lambda: found.cut("joint", loss=None)).do[1]
    )
    assert "program.pair(loss=1)" in refusal(lambda: found.pair(loss=1)).do[2]


class Sum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum()


def test_a_cut_made_with_a_function_is_made_anew_by_nobody(tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    program = foretrace.capture(nn.Linear(4, 3), (x,))
    joint = program.cut("joint", keep=[lambda op: "linear" in str(op.target)])
    program.save(tmp_path / "saved.ft", joint)
    again = foretrace.load(tmp_path / "saved.ft").cut("joint")
    assert again.nodes == joint.nodes
    tangent = torch.ones(2, 3)
    found, expected = again(x, tangents=[tangent]), joint(x, tangents=[tangent])
    assert list(differences(expected, found, "")) == []
    turned = torch.ones(3, 2).t()
    assert refusal(lambda: again(x, tangents=[turned])).kind == "not saved"
    named = program.cut("joint", keep=["linear", torch.ops.aten.addmm])
    program.save(tmp_path / "named.ft", named)
    again = foretrace.load(tmp_path / "named.ft").cut("joint")
    found, expected = again(x, tangents=[turned]), named(x, tangents=[turned])
    assert list(differences(expected, found, "")) == []


def test_a_cut_that_a_table_opened(tmp_path: Path) -> None:
    """An op that the table opened is made of ops that are pieces of it."""
    model, x = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4)), torch.randn(3, 4)
    program = foretrace.capture(model, (x,))
    joint = program.cut("joint", decompositions=torch.export.default_decompositions())
    program.save(tmp_path / "saved.ft", joint)
    again = foretrace.load(tmp_path / "saved.ft").cut("joint")
    assert same_explanations(joint, again)
    tangent = torch.randn(3, 4)
    found, expected = again(x, tangents=[tangent]), joint(x, tangents=[tangent])
    assert list(differences(expected, found, "")) == []
    turned = torch.randn(4, 3).t()
    assert refusal(lambda: again(x, tangents=[turned])).kind == "not saved"


def test_both_sides_of_a_branch(tmp_path: Path) -> None:
    def fn(x: Tensor) -> Tensor:
        y = x * 2
        return (y.sin() if y.sum() > 0 else y.cos()).square().sum()

    x = torch.randn(4, requires_grad=True)
    program = foretrace.capture(fn, (x,), branches="both")
    program.save(tmp_path / "saved.ft", "export", program.cut("joint", loss=0))
    found = foretrace.load(tmp_path / "saved.ft")
    for sign in (1.0, -1.0):
        given = torch.full((4,), sign, requires_grad=True)
        loss, gradients = found.cut("joint")(given)
        found(given).backward()
        assert given.grad is not None
        assert torch.equal(loss, fn(given))
        assert torch.equal(gradients["x"], given.grad)
