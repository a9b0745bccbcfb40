"""What one capture learns and another uses: the same graphs, and nothing that no longer holds."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from foretrace.autograd.derivatives.registry import BackwardCall
from foretrace.ir.symbols.symbols import Symbols
from foretrace.ir.values.tensor_type import TensorType
from foretrace.operators.inference.infer import Inference
from foretrace.operators.inference.meta_kernels import MetaKernels
from foretrace.operators.schemas.cache import Cache, Lasting, Learned, lasts
from foretrace.session.run.setup import RULES
from tests.programs import Case
from tests.support.turns import ZOO, one_in

aten = torch.ops.aten


def code(program: foretrace.Program, cut: str = "aten") -> str:
    return str(program.cut(cut, **({"loss": 0} if cut == "joint" else {})).graph_module.code)


def test_what_lasts() -> None:
    (item,) = foretrace.capture(lambda x: x * 2, (torch.randn(5, 4),)).recorded.inputs
    assert lasts((aten.mul.Tensor, item.value.type, "0x1p+1", bool, True, (None, torch.float32)))
    assert not lasts((aten.mul.Tensor, torch.Generator()))


def test_what_does_not_last_is_of_one_capture() -> None:
    lasting = Lasting()
    first: Cache[int] = Cache(lasting, set(), Symbols())
    second: Cache[int] = Cache(lasting, set(), Symbols())
    first.learn(("k",), lambda: 1, lambda _: True)
    first.learn(("l",), lambda: 2, lambda _: False)
    assert (second.get(("k",)), second.get(("l",)), first.get(("l",))) == (1, None, 2)


def guards(program: foretrace.Program) -> list[tuple[str, int]]:
    return [(str(g.condition), g.frame.line if g.frame else 0) for g in program.recorded.guards]


def test_guards_are_made_again() -> None:
    """An answer about open sizes brings the guards that finding it made, with the line now."""

    def first(x: Tensor, y: Tensor) -> Tensor:
        return x.view(-1, 2) + y

    def second(x: Tensor, y: Tensor) -> Tensor:
        return x.view(-1, 2) + y

    args = (torch.randn(6, 4), torch.randn(12, 2))
    RULES.forget()
    one = guards(foretrace.capture(first, args, dynamic_shapes=True))
    two = guards(foretrace.capture(second, args, dynamic_shapes=True))
    RULES.forget()
    anew = guards(foretrace.capture(second, args, dynamic_shapes=True))
    assert one
    assert two == anew
    assert [condition for condition, _ in one] == [condition for condition, _ in two]
    assert {line for _, line in one} != {line for _, line in two}


def test_what_one_program_knows_another_does_not() -> None:
    """Sizes that one program found equal are two sizes in the next."""

    def equal(x: Tensor, y: Tensor) -> Tensor:
        return (x + y).sum() + (x * 2).sum()

    def apart(x: Tensor, y: Tensor) -> Tensor:
        return (x * 2).sum() + (y * 2).sum()

    RULES.forget()
    same = torch.randn(5, 3), torch.randn(5, 3)
    foretrace.capture(equal, same, dynamic_shapes=True)
    program = foretrace.capture(apart, same, dynamic_shapes=True)
    others = torch.randn(7, 3), torch.randn(9, 2)
    assert torch.equal(program.cut("aten")(*others), apart(*others))


@pytest.mark.parametrize("number", [5, 8])
def test_a_number_decides_again(number: int) -> None:
    def asked(x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] > 6 else x * 3

    x = torch.randn(number, 2)
    foretrace.capture(asked, (torch.randn(13 - number, 2),), dynamic_shapes=True)
    cut = foretrace.capture(asked, (x,), dynamic_shapes=True).cut("aten")
    assert torch.equal(cut(x), asked(x))
    with pytest.raises(foretrace.Refusal, match="guard broken"):
        cut(torch.randn(13 - number, 2))


@pytest.mark.parametrize("cut", ["export", "aten", "joint"])
def test_a_second_capture_gives_the_same_graph(cut: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 1))

    def loss(x: Tensor) -> Tensor:
        return model(x).sum()

    x = torch.randn(3, 4)
    RULES.forget()
    assert code(foretrace.capture(loss, (x,)), cut) == code(foretrace.capture(loss, (x,)), cut)


def test_the_default_dtype_is_part_of_what_is_known() -> None:
    def made(x: Tensor) -> Tensor:
        return x + torch.ones(2)

    x = torch.randn(2)
    foretrace.capture(made, (x,))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert foretrace.capture(made, (x,)).cut("aten")(x).dtype == torch.float64
    finally:
        torch.set_default_dtype(before)
    assert foretrace.capture(made, (x,)).cut("aten")(x).dtype == torch.float32


@pytest.fixture
def _rules() -> Iterator[None]:
    before = dict(vars(RULES)["_rules"])
    yield
    vars(RULES)["_rules"].clear()
    vars(RULES)["_rules"].update(before)
    RULES.forget()


@pytest.mark.usefixtures("_rules")
def test_a_new_rule_is_used_at_once() -> None:
    w = torch.randn(3, requires_grad=True)

    def loss(w: Tensor) -> Tensor:
        return w.exp().sum()

    def gradient() -> Tensor:
        return foretrace.capture(loss, (w,)).cut("joint", loss=0)(w)[1]["w"]

    assert torch.equal(gradient(), w.exp())
    for factor in (3, 5):

        def scaled(call: BackwardCall, factor: int = factor) -> tuple[Tensor]:
            return (call.gradient * factor,)

        foretrace.rule(aten.exp, backward=scaled)
        assert torch.equal(gradient(), torch.full((3,), float(factor)))


class Compared(MetaKernels):
    """Asks FakeTensor the same, and collects what differs."""

    def __init__(self, asked: MetaKernels, inference: Inference) -> None:
        super().__init__(asked.types, asked.meta)
        self.inference, self.different, self.answered = inference, list[Any](), 0

    def ask(self, func: Any, args: Any, kwargs: Any) -> Any:
        found = super().ask(func, args, kwargs)
        if found is not None:
            self.answered += 1
            faked = vars(Inference)["_run"](self.inference, func, args, kwargs)
            if list(map(steps, flat(faked))) != list(map(steps, flat(found))):
                self.different.append((func, args, found, faked))
        return found


def flat(result: Any) -> list[Any]:
    return (
        [i for item in result for i in flat(item)]
        if isinstance(result, (tuple, list))
        else [result]
    )


def steps(item: Any) -> Any:
    """Of a dimension of one element FakeTensor's `view` has another stride than C++, and eager."""
    if not isinstance(item, TensorType):
        return item
    pairs = zip(item.shape, item.stride, strict=True)
    return item.but(stride=tuple(0 if size == 1 else step for size, step in pairs))


@pytest.mark.parametrize("case", one_in(12, ZOO, turn=11))
def test_meta_kernels_answer_as_fake_tensor_does(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Types of results, where C++ is asked without FakeTensor around it, are the same."""
    made: list[Compared] = []
    init = Inference.__init__

    def with_comparison(self: Inference, *args: Any) -> None:
        init(self, *args)
        made.append(Compared(vars(self)["_meta_kernels"], self))
        vars(self)["_meta_kernels"] = made[-1]

    monkeypatch.setattr(Inference, "__init__", with_comparison)
    monkeypatch.setattr(RULES, "learned", lambda *_: Learned())
    subject = case.subject(4)
    try:
        program = foretrace.capture(subject.fn, subject.args, subject.kwargs)
        program.cut("joint", loss=case.loss)
    except foretrace.Refusal:
        pass
    assert made
    for each in made:
        assert not each.different
