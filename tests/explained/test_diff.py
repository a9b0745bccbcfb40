"""Two cuts beside each other: what differs is found, and nothing else, each with its reason."""

import json
import linecache
from collections.abc import Callable
from itertools import combinations, count, permutations
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

import foretrace
from foretrace.frontends.cli.load import user_program
from foretrace.inspect.check.check import loss_of
from tests.explained.test_explain import ROOT, example
from tests.programs import CASES
from tests.programs.registry import Case

NUMBERS = count()
UNARY = ("sin", "cos", "tanh", "sigmoid", "neg", "relu")
BINARY = ("add", "mul", "sub")


def joint(program: foretrace.Program, **chosen: Any) -> foretrace.Cut:
    return program.cut("joint", loss=loss_of(program.recorded), **chosen)


def explained(found: foretrace.Diff) -> foretrace.Diff:
    """Whatever is compared: every difference has a reason, reads, and can be written as JSON."""
    assert not found.missing, str(found)
    assert all(each.reason.text for each in found.differences)
    assert "MISSING" not in str(found)
    data = json.loads(json.dumps(found.to_dict()))
    assert sum(group["count"] for group in data["groups"]) == len(found.differences)
    assert sum(group.count for group in found.groups) == len(found.differences)
    return found


def kinds(found: foretrace.Diff, part: str = "forward") -> list[tuple[str, list[str], list[str]]]:
    """The differences of a part: the kind, and what is called on both sides."""
    return [
        (each.kind, [short(s.target) for s in each.left], [short(s.target) for s in each.right])
        for each in found.differences
        if each.part == part
    ]


def short(target: str) -> str:
    return target.removeprefix("aten.").partition(".")[0]


# --------------------------------------------------------------------- one known change


def function(lines: list[str]) -> Callable[..., Tensor]:
    """A function of these lines, which has a file of its own."""
    name = f"drawn_{next(NUMBERS)}.py"
    text = "\n".join(["def fn(h0, w):", *(f"    {line}" for line in lines)]) + "\n"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names: dict[str, Any] = {"torch": torch, "F": F}
    exec(compile(text, name, "exec"), names)  # noqa: S102  (a drawn program)
    return names["fn"]


@st.composite
def programs(draw: st.DrawFn) -> list[str]:
    """Lines, each of one op; every result is used by the next, some also later."""
    lines = []
    for n in range(draw(st.integers(2, 7))):
        if draw(st.booleans()):
            lines.append(f"h{n + 1} = torch.{draw(st.sampled_from(UNARY))}(h{n})")
        else:
            other = draw(st.sampled_from(["w", *(f"h{m}" for m in range(n + 1))]))
            lines.append(f"h{n + 1} = torch.{draw(st.sampled_from(BINARY))}(h{n}, {other})")
    return [*lines, f"return h{len(lines)}.sum()"]


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return (
        torch.randn(3, 4, dtype=dtype, requires_grad=True),
        torch.randn(3, 4, dtype=dtype, requires_grad=True),
    )


def captured(lines: list[str], *args: Tensor, **options: Any) -> foretrace.Program:
    return foretrace.capture(function(lines), args or inputs(), **options)


def one_reason(found: foretrace.Diff, kind: str) -> None:
    explained(found)
    assert [reason.kind for reason in found.reasons] == [kind], str(found)


DRAWN = settings(max_examples=20, deadline=None)


@DRAWN
@given(programs())
def test_the_same_lines_are_the_same(lines: list[str]) -> None:
    for kind in ("export", "aten", "joint"):
        chosen = {"loss": 0} if kind == "joint" else {}
        left, right = (captured(lines).cut(kind, **chosen) for _ in range(2))
        found = explained(foretrace.diff(left, right))
        assert not found, str(found)
        assert found.same == len(left.graph.ops)


@DRAWN
@given(programs(), st.data())
def test_an_op_replaced(lines: list[str], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(lines) - 2))
    other = [*lines]
    name = lines[place].split("torch.")[1].split("(")[0]
    other[place] = f"h{place + 1} = torch.exp(h{place})"
    left, right = joint(captured(lines)), joint(captured(other))
    found = foretrace.diff(left, right)
    one_reason(found, "program")
    assert kinds(found) == [("replaced", [name], ["exp"])]
    assert found.reasons[0].text == f"the left program calls {name}, the right one exp"
    assert f":{place + 2} in fn" in found.reasons[0].place


def test_the_sums_of_two_gradients_are_told_apart() -> None:
    lines = ["h1 = torch.add(h0, w)", "h2 = torch.mul(h1, w)", "h3 = torch.add(h2, h0)"]
    other = [*lines[:2], "h3 = torch.exp(h2)"]
    cuts = [joint(captured([*each, "return h3.sum()"])) for each in (lines, other)]
    one_reason(foretrace.diff(*cuts), "program")


def test_sums_wait_for_what_they_add() -> None:
    """The operands of the second sum are known when those of the first are."""
    lines = ["h1 = torch.mul(h0, h0)", "h2 = torch.add(h1, h0)", "h3 = torch.add(h2, w)"]
    other = [*lines[:2], "h3 = torch.exp(h2)"]
    cuts = [joint(captured([*each, "return h3.sum()"])) for each in (lines, other)]
    one_reason(foretrace.diff(*cuts), "program")


def test_equal_sums_are_told_apart_by_what_uses_them() -> None:
    """The gradients of `h2` and of `w` are made by two equal calls; the right side has one."""
    lines = [
        "h1 = torch.sin(h0)", "h2 = torch.add(h1, w)", "h3 = torch.add(h2, w)",
        "h4 = torch.sin(h3)", "h5 = torch.add(h4, h2)", "h6 = torch.add(h5, w)",
        "h7 = torch.sin(h6)",
    ]  # fmt: skip
    other = [*lines[:4], "h5 = torch.exp(h4)", *lines[5:]]
    cuts = [joint(captured([*each, "return h7.sum()"])) for each in (lines, other)]
    one_reason(foretrace.diff(*cuts), "program")


@DRAWN
@given(programs(), st.data())
def test_an_op_more(lines: list[str], data: st.DataObject) -> None:
    place = data.draw(st.integers(1, len(lines) - 1))
    other = [*lines[:place], f"h{place} = torch.exp(h{place})", *lines[place:]]
    left, right = joint(captured(lines)), joint(captured(other))
    found = foretrace.diff(left, right)
    one_reason(found, "program")
    assert kinds(found) == [("only right", [], ["exp"])]
    assert kinds(foretrace.diff(right, left)) == [("only left", ["exp"], [])]


@DRAWN
@given(programs(), st.data())
def test_another_number(lines: list[str], data: st.DataObject) -> None:
    place = data.draw(st.integers(1, len(lines) - 1))
    two, three = (
        [*lines[:place], f"h{place} = torch.mul(h{place}, {n})", *lines[place:]] for n in (2, 3)
    )
    found = foretrace.diff(captured(two).cut("aten"), captured(three).cut("aten"))
    one_reason(found, "argument")
    assert kinds(found) == [("arguments", ["mul"], ["mul"])]
    assert found.differences[0].notes == ("other is 2 on the left, 3 on the right",)


@DRAWN
@given(programs(), st.data())
def test_other_operands(lines: list[str], data: st.DataObject) -> None:
    place = data.draw(st.integers(1, len(lines) - 1))
    new = f"h{place} = torch.div"
    with_w, with_h = (
        [*lines[:place], f"{new}(h{place}, {name})", *lines[place:]] for name in ("w", "h0")
    )
    found = foretrace.diff(captured(with_w).cut("aten"), captured(with_h).cut("aten"))
    one_reason(found, "program")
    assert kinds(found) == [("arguments", ["div"], ["div"])]
    assert found.differences[0].notes == ("it gets w on the left, h0 on the right",)


@DRAWN
@given(programs())
def test_another_dtype(lines: list[str]) -> None:
    fn = function(lines)
    left, right = (foretrace.capture(fn, inputs(t)) for t in (torch.float32, torch.float64))
    found = foretrace.diff(joint(left), joint(right))
    one_reason(found, "input")
    assert found.reasons[0].text == "h0 and w are f32 on the left, f64 on the right"
    assert {each.kind for each in found.differences} == {"type"}
    assert len([each for each in found.differences if each.part == "forward"]) == len(lines)


@DRAWN
@given(programs())
def test_open_sizes(lines: list[str]) -> None:
    fn = function(lines)
    h0, w = inputs()
    rows = {0: torch.export.Dim.AUTO}
    left = foretrace.capture(fn, (h0, w))
    right = foretrace.capture(fn, (h0, w), dynamic_shapes={"h0": rows, "w": rows})
    found = explained(foretrace.diff(joint(left), joint(right)))
    assert {reason.kind for reason in found.reasons} == {"input"}
    assert all("size 3 is s" in reason.text for reason in found.reasons)
    assert {each.kind for each in found.differences} == {"type"}


@DRAWN
@given(programs(), st.data())
def test_a_gradient_that_nobody_wants(lines: list[str], data: st.DataObject) -> None:
    fn, (h0, w) = function(["h0 = torch.mul(h0, w)", *lines]), inputs()
    left = foretrace.capture(fn, (h0, w))
    right = foretrace.capture(fn, (h0, w.detach()))
    found = foretrace.diff(joint(left), joint(right))
    one_reason(found, "input")
    assert found.reasons[0].text == "w requires grad on the left only"


class Dropping(nn.Module):
    def __init__(self, before: str, after: str) -> None:
        super().__init__()
        self.before, self.after = getattr(torch, before), getattr(torch, after)
        self.drop = nn.Dropout(0.25)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.drop(self.before(x))).sum()


@DRAWN
@given(st.sampled_from(UNARY), st.sampled_from(UNARY))
def test_a_dropout_in_train_and_eval(before: str, after: str) -> None:
    x = inputs()[0]
    cuts = [
        joint(foretrace.capture(Dropping(before, after).train(mode), (x,)))
        for mode in (True, False)
    ]
    found = foretrace.diff(*cuts)
    one_reason(found, "mode")
    assert found.reasons[0].text == "in training mode on the left, in eval mode on the right"
    assert [kind for kind, *_ in kinds(found)] == ["only left"]
    assert found.differences[0].module == ("Dropping", "drop")


@DRAWN
@given(st.sampled_from(UNARY), st.sampled_from(UNARY))
def test_another_number_that_a_module_holds(before: str, after: str) -> None:
    x = inputs()[0]
    left, right = Dropping(before, after), Dropping(before, after)
    right.drop.p = 0.5
    found = foretrace.diff(
        *(foretrace.capture(module, (x,)).cut("export") for module in (left, right))
    )
    one_reason(found, "held")
    assert found.reasons[0].text == "drop.p is 0.25 on the left, 0.5 on the right"
    assert kinds(found) == [("arguments", ["dropout"], ["dropout"])]


NORMED = "h0 = F.rms_norm(h0, (4,), None, 1e-6)"


@DRAWN
@given(programs())
def test_another_target(lines: list[str]) -> None:
    fn = function([NORMED, *lines])
    left, right = (foretrace.capture(fn, inputs(), target=t) for t in ("cpu", "cuda:sm90"))
    found = foretrace.diff(joint(left), joint(right))
    one_reason(found, "choice")
    text = "_fused_rms_norm has a kernel of its own on cuda:sm90, none on cpu"
    assert found.reasons[0].text == text
    assert found.reasons[0].place.startswith("foretrace/autograd/derivatives/target_semantics.py:")
    assert [(d.kind, d.part) for d in found.differences] == [
        ("kept", "forward"), ("replaced", "backward"),
    ]  # fmt: skip


def at(target: str, dtype: torch.dtype = torch.float32, **options: Any) -> foretrace.Cut:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return F.layer_norm(F.dropout(x, 0.25), (4,), w).sin().sum()

    x, w = torch.ones(3, 4, dtype=dtype), torch.ones(4, dtype=dtype)
    given_ = (x.requires_grad_(), w.requires_grad_())
    return joint(foretrace.capture(fn, given_, target=target, **options))


def test_a_kernel_that_asks_for_the_device() -> None:
    found = explained(foretrace.diff(at("cpu"), at("cuda:sm90")))
    one_reason(found, "kernel")
    (reason,) = found.reasons
    assert reason.text.startswith("dropout's composite kernel calls empty_like, bernoulli_, div_")
    assert reason.text.endswith("on cpu; native_dropout on cuda:sm90")
    assert reason.place.startswith("build/aten/src/ATen/RegisterCompositeImplicit")
    assert reason.root.text == "captured for cpu on the left, for cuda:sm90 on the right"


def test_a_kernel_that_calls_the_same_operators_more_often_there() -> None:
    """Two lists of the same names say nothing."""

    def fn(x: Tensor) -> Tensor:
        lengths = torch.tensor([6, 5]), torch.tensor([2, 2])
        return F.ctc_loss(x.log_softmax(-1), torch.tensor([[1, 2], [2, 3]]), *lengths)

    x = torch.ones(6, 2, 5, requires_grad=True)
    cuts = (joint(foretrace.capture(fn, (x,), target=target)) for target in ("cpu", "cuda:sm90"))
    (reason,) = explained(foretrace.diff(*cuts)).reasons
    assert str(reason.text) == "captured for cpu on the left, for cuda:sm90 on the right"


def test_a_kernel_that_gives_another_type_on_a_device() -> None:
    cuts = [at(target, torch.bfloat16) for target in ("cpu", "cuda:sm90")]
    found = explained(foretrace.diff(*cuts))
    text = "native_layer_norm gives bf16 on cpu, f32 on cuda:sm90, of operands of equal types"
    (reason,) = (each for each in found.reasons if each.text == text)
    assert reason.root.kind == "target"
    assert {each.kind for each in found.reasons} == {"kernel"}


def test_of_two_settings_each_has_its_own() -> None:
    rows = ({0: torch.export.Dim.AUTO}, None)
    found = explained(foretrace.diff(at("cpu", dynamic_shapes=rows), at("cuda:sm90")))
    of = {each.kind: {d.kind for d in found.differences if d.reason == each}
          for each in found.reasons}  # fmt: skip
    assert of == {"kernel": {"replaced"}, "input": {"type"}}, str(found)


def test_a_size_is_not_the_modes() -> None:
    x = inputs()[0]
    rows = ({0: torch.export.Dim.AUTO},)
    left = foretrace.capture(Dropping("sin", "cos").train(), (x,), dynamic_shapes=rows)
    right = foretrace.capture(Dropping("sin", "cos").eval(), (x,))
    found = explained(foretrace.diff(joint(left), joint(right)))
    kinds_ = {each.kind: each.reason.kind for each in found.differences if each.part == "forward"}
    assert kinds_ == {"type": "input", "only left": "mode"}, str(found)


def test_what_is_known_of_nothing_says_so() -> None:
    def fn(x: Tensor) -> Tensor:
        single = torch.get_default_dtype() is torch.float32
        return x.sin() if torch.is_grad_enabled() and single else x

    x = torch.ones(3)

    def cut() -> foretrace.Cut:
        return foretrace.capture(fn, (x,)).cut("export")

    left = cut()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            right = cut()
    finally:
        torch.set_default_dtype(torch.float32)
    found = explained(foretrace.diff(left, right))
    assert "fallback" in {each.kind for each in found.reasons}, str(found)
    text = next(each.text for each in found.reasons if each.kind == "fallback")
    assert text.startswith("nothing nearer is known; these were given differently: the grad mode")
    assert "the default dtype is" in text


@DRAWN
@given(programs())
def test_an_op_kept(lines: list[str]) -> None:
    program = captured([NORMED, *lines])
    found = foretrace.diff(joint(program), joint(program, keep=["rms_norm"]))
    one_reason(found, "keep")
    assert found.reasons[0].text == "keep= names rms_norm in the right cut"
    assert [(d.kind, d.part, d.what) for d in found.differences] == [
        ("kept", "forward", "rms_norm"), ("replaced", "backward", "rms_norm"),
    ]  # fmt: skip
    back = foretrace.diff(joint(program, keep=["rms_norm"]), joint(program))
    assert [d.kind for d in back.differences] == ["opened", "replaced"]


@DRAWN
@given(programs())
def test_another_policy(lines: list[str]) -> None:
    program = captured(lines)
    left, right = (program.cut("backward", loss=0, policy=p) for p in ("save_all", "recompute_all"))
    found = explained(foretrace.diff(left, right))
    assert {reason.kind for reason in found.reasons} <= {"policy"}
    again = {each.right[0].name for each in found.differences if each.part == "forward"}
    assert again == set(right.nodes) & again
    assert len(right.graph.ops) - len(left.graph.ops) == len(again)


# --------------------------------------------------------------------- other forms of a program


def test_modules_and_functions_are_aligned_by_their_ops() -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.proj, self.act = nn.Linear(4, 4), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.proj(x)).sum()

    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(F.linear(x, self.weight, self.bias)).sum()

    x = torch.ones(2, 4)
    found = explained(
        foretrace.diff(*(foretrace.capture(m, (x,)).cut("export") for m in (Layers(), Written())))
    )
    assert kinds(found) == []
    assert found.same == 3


def test_what_repeats_is_folded() -> None:
    deep = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.RMSNorm(4)) for _ in range(8)))
    x = torch.ones(2, 4)
    cuts = [foretrace.capture(deep, (x,), target=t).cut("aten") for t in ("cpu", "cuda:sm90")]
    found = explained(foretrace.diff(*cuts))
    (group,) = found.groups
    (fold,) = group.folds
    assert len(fold.differences) == 8
    assert {each.module[-1] for each in fold.differences} == {f"{n}.1" for n in range(8)}
    assert "8 \N{MULTIPLICATION SIGN} rms_norm > _fused_rms_norm" in str(found)
    assert "in          0.1, 1.1 and 6 more" in str(found)


def test_a_condition_is_aligned_inside() -> None:
    def fn(x: Tensor, other: bool) -> Tensor:
        def true(x: Tensor) -> Tensor:
            return x.cos() if other else x.sin()

        return torch.cond(x.sum() > 0, true, lambda x: x.neg(), (x,))

    x = torch.ones(3)
    cuts = [foretrace.capture(fn, (x, other)).cut("export") for other in (False, True)]
    found = explained(foretrace.diff(*cuts))
    assert kinds(found) == [("replaced", ["sin"], ["cos"])]
    assert found.reasons[0].text == "other is False on the left, True on the right"


def test_decompositions() -> None:
    def fn(x: Tensor) -> Tensor:
        return F.gelu(x).sum()

    program = foretrace.capture(fn, (torch.ones(3, requires_grad=True),))
    table = torch.export.default_decompositions()
    found = explained(foretrace.diff(joint(program), joint(program, decompositions=table)))
    assert [reason.kind for reason in found.reasons] == ["table"]
    assert "gelu" in [each.what for each in found.differences if each.part == "backward"]
    opened = next(each for each in found.differences if each.left[0].name == "gelu_backward")
    assert "erf" in [seen.name for seen in opened.right]


def test_other_losses() -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin().sum(), x.cos().sum()

    program = foretrace.capture(fn, (torch.ones(3, requires_grad=True),))
    found = explained(foretrace.diff(*(program.cut("joint", loss=n) for n in (0, 1))))
    assert found
    assert "loss=0 on the left, loss=1 on the right" in {reason.text for reason in found.reasons}


# --------------------------------------------------------------------- nodes, and bad input


def test_one_node() -> None:
    program = foretrace.capture(*example("attention.py"))
    found = foretrace.diff(program.cut("export"), joint(program))
    assert [d.what for d in found.of("_safe_softmax").differences] == [
        "scaled_dot_product_attention"
    ]
    assert not found.of("sum_1")
    with pytest.raises(foretrace.Refusal, match="neither cut has a node '_safe_sofmax'") as refused:
        found.of("_safe_sofmax")
    assert refused.value.do[0] == "near it is _safe_softmax"


def test_unrelated_programs_are_refused() -> None:
    left = foretrace.capture(*example("attention.py")).cut("export")
    right = foretrace.capture(nn.Conv2d(1, 1, 1), (torch.ones(1, 1, 2, 2),)).cut("export")
    with pytest.raises(foretrace.Refusal, match="the two cuts have nothing in common"):
        foretrace.diff(left, right)


# --------------------------------------------------------------------- both run on one input


def test_a_run_finds_the_first_that_differs() -> None:
    lines = [
        "h1 = torch.sin(h0)",
        "h2 = torch.mul(h1, {})",
        "h3 = torch.tanh(h2)",
        "return h3.sum()",
    ]
    left, right = (captured([line.format(n) for line in lines]) for n in ("2", "2.0001"))
    found = foretrace.diff(joint(left), joint(right), run=(inputs(), {}))
    first = found.measured.first
    assert (first.left, first.right) == ("mul", "mul")
    x = inputs()[0].detach().sin()
    expected = (x * 2 - x * 2.0001).abs().max()
    assert first.largest == pytest.approx(float(expected))
    assert found.measured.steps[0].left == "sin"
    assert found.measured.steps[0].equal
    assert found.measured.steps[-1].left == "gradient of h0"
    assert "first       mul" in str(found)


@pytest.mark.parametrize("kind", ["export", "aten", "joint", "forward"])
def test_a_run_of_equal_cuts_is_equal(kind: str) -> None:
    fn, args, kwargs = example("rms_norm.py")
    cuts = [foretrace.capture(fn, args, kwargs).cut(kind) for _ in range(2)]
    found = foretrace.diff(*cuts, run=(args, kwargs))
    assert found.measured.first is None
    assert found.measured.steps


def test_a_kept_op_gives_the_same() -> None:
    fn, args, kwargs = example("attention.py:dropped")
    program = foretrace.capture(fn, args, kwargs)
    kept = joint(program, keep=["scaled_dot_product_attention"])
    found = foretrace.diff(joint(program), kept, run=(args, kwargs))
    assert found.measured.first is None
    names = [step.left for step in found.measured.steps]
    assert {"gradient of q", "gradient of k", "gradient of v"} <= set(names)


def test_a_run_leaves_the_program_as_it_was() -> None:
    model, x = nn.BatchNorm1d(3), torch.randn(4, 3)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    random = torch.get_rng_state()
    program = foretrace.capture(model, (x,))
    foretrace.diff(program.cut("export"), program.cut("joint"), run=((x,), {}))
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())


def test_what_cannot_run_is_refused() -> None:
    fn, args, kwargs = example("rms_norm.py:total")
    here, there = (foretrace.capture(fn, args, kwargs, target=t) for t in ("cpu", "cuda:sm90"))
    with pytest.raises(foretrace.Refusal, match="joint@cuda:sm90 cannot run here"):
        foretrace.diff(joint(here), joint(there), run=(args, kwargs))


@pytest.mark.parametrize("name", ["rms_norm.py:total", "attention.py:dropped", "rms_norm.py"])
def test_backward_halves_run_on_what_their_forwards_save(name: str) -> None:
    fn, args, kwargs = example(name)
    program = foretrace.capture(fn, args, kwargs)
    loss = loss_of(program.recorded)
    policies = ("min_cut", "save_all", "recompute_all")
    halves = [program.cut("backward", loss=loss, policy=policy) for policy in policies]
    for left, right in combinations([*halves, joint(program)], 2):
        found = foretrace.diff(left, right, run=(args, kwargs))
        assert found.measured.first is None, str(found)
        steps = {step.left for step in found.measured.steps}
        assert {str(o.role) for o in left.graph.outputs if o.value is not None} <= steps


def test_backward_halves_that_differ_in_value() -> None:
    lines = ["h1 = torch.mul(torch.sin(h0), {})", "h2 = torch.tanh(h1)", "return h2.sum()"]
    halves = [
        captured([line.format(n) for line in lines]).cut("backward", loss=0)
        for n in ("2", "2.0001")
    ]
    found = foretrace.diff(*halves, run=(inputs(), {}))
    assert found.measured.first is not None
    assert found.measured.steps[-1].left == "gradient of h0"
    assert not found.measured.steps[-1].equal


# --------------------------------------------------------------------- models


MODELS = ("llama", "gpt2", "bert", "vit", "resnet", "attention", "rms_norm:total")
"""Of examples/"""


def cast(tree: Any) -> Any:
    if isinstance(tree, Tensor) and tree.is_floating_point():
        return tree.detach().bfloat16().requires_grad_(tree.requires_grad)
    if isinstance(tree, dict):
        return {key: cast(item) for key, item in tree.items()}
    return tuple(map(cast, tree)) if isinstance(tree, tuple) else tree


def model(name: str) -> tuple[Any, Any, Any]:
    file, _, program = name.partition(":")
    with user_program(f"{ROOT}/examples/{file}.py:{program}") as user:
        return user.fn, user.args, user.kwargs


FORMS: tuple[dict[str, Any], ...] = (
    {}, {"target": "cuda:sm90"}, {"training": False}, {"open": True}, {"bf16": True},
)  # fmt: skip
"""One thing other than in the first"""


def form(
    name: str, *, target: str = "cpu", training: bool = True, open: bool = False, bf16: bool = False
) -> foretrace.Program:
    fn, args, kwargs = model(name)
    fn = fn.train(training)
    if bf16:
        fn, args, kwargs = fn.bfloat16(), cast(args), cast(kwargs)
    return foretrace.capture(fn, args, kwargs, target=target, dynamic_shapes=open or None)


def near(found: foretrace.Diff) -> foretrace.Diff:
    """Every difference has a reason, and none of them only what was given differently."""
    far = [each for each in explained(found).reasons if each.kind in ("fallback", "several")]
    assert not far, str(found)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_no_difference_of_a_model_is_without_a_reason(name: str) -> None:
    programs_ = [form(name, **options) for options in FORMS]
    whole, *others = map(joint, programs_)
    program = programs_[0]
    assert not foretrace.diff(whole, joint(form(name)))
    loss = loss_of(program.recorded)
    others += [program.cut("export"), program.cut("aten"), *program.pair(loss=loss)]
    for other in others:
        assert len(near(foretrace.diff(whole, other)).reasons) <= 4
    policies = [program.pair(loss=loss, policy=p) for p in ("min_cut", "save_all")]
    for first, second in zip(*policies, strict=True):
        near(foretrace.diff(first, second))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_of_every_form_of_a_model_the_same(name: str) -> None:
    """The same on the other target, in eval mode, with open sizes, in bfloat16."""
    for around, other in permutations(FORMS[1:], 2):
        left, right = (joint(form(name, **around, **each)) for each in ({}, other))
        assert len(near(foretrace.diff(left, right)).reasons) <= 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_no_difference_in_the_zoo_is_without_a_reason(case: Case) -> None:
    given_ = case.subject()
    try:
        program = foretrace.capture(given_.fn, given_.args, given_.kwargs)
        cuts = [
            program.cut(kind, **({"loss": case.loss} if kind == "joint" else {}))
            for kind in case.cuts
        ]
        if "joint" in case.cuts:
            cuts += program.pair(loss=case.loss)
    except foretrace.Refusal as refusal:
        if not case.may_refuse:
            raise
        pytest.xfail(f"{case.may_refuse}: {refusal}")
    for left, right in combinations(cuts, 2):
        explained(foretrace.diff(left, right))
