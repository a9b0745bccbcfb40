"""Two programs are one, or differ at a first op."""

from dataclasses import replace

import pytest
import torch

from foretrace.errors import Frame
from foretrace.ir.program.equality import (
    Equality,
    ProgramsDiffer,
    ValueNumbers,
    equal,
    same_constant,
)
from foretrace.ir.program.op import AS_STRIDED, Op, Subgraph, ViewStep, Write
from foretrace.ir.program.origin import ModuleCall, Origin
from foretrace.ir.program.rewriter import RecordedBody, Rewriter
from foretrace.ir.program.walk import subgraphs_of
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value
from tests.support.notation import read
from tests.support.trees import COND

HERE = Origin(None, None)
FEWER = "there are 1 ops where there were 2"
TYPE = TensorType((4,), (1,), torch.float32, torch.device("cpu"))
PROGRAM = """
%x: f32[4, 8]
%w: f32[4, 8]
%0 = aten.linear.default(%x, %w, None): f32[4, 4]
    %1 = aten.t.default(%w): f32[8, 4] by [1, 8]
    %0 = aten.mm.default(%x, %1): f32[4, 4]
%2 = aten.add.Tensor(%0, 0.0, alpha=2): f32[4, 4]
"""


def difference(one: list[Op], other: list[Op], context: Equality | None = None) -> str | None:
    """What differs first, in words."""
    try:
        (context or Equality()).ops(one, other)
    except ProgramsDiffer as differ:
        return differ.what
    return None


def texts(one: str, other: str) -> str | None:
    return difference(read(one)[1], read(other)[1])


@pytest.mark.parametrize("text", [PROGRAM, COND])
def test_a_program_is_itself_whatever_its_values_are(text):
    assert texts(text, text) is None


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("add.Tensor", "sub.Tensor", "sub runs in the place of add"),
        ("(%0, 0.0", "(%0, -0.0", "add has other arguments"),
        ("(%0, 0.0", "(%0, 0", "add has other arguments"),
        ("alpha=2", "alpha=2.0", "add has other arguments"),
        ("alpha=2", "other=2", "add has other arguments"),
        ("(%0, 0.0", "(%x, 0.0", "add has other arguments"),
        ("    %1 = aten.t.default(%w)", "    %1 = aten.t.default(%x)", "t has other arguments"),
        ("%2 = aten.add.Tensor(%0, 0.0, alpha=2): f32[4, 4]", "", FEWER),
        ("alpha=2): f32[4, 4]", "alpha=2): f32[4, 4] by [1, 4]", "add makes other values"),
    ],
)  # fmt: skip
def test_the_first_difference_is_named(old, new, what):
    assert old in PROGRAM
    assert texts(PROGRAM, PROGRAM.replace(old, new)) == what


def test_values_are_one_in_both_directions():
    one = read("%a: f32[4]\n%b: f32[4]\n%0 = aten.add.Tensor(%a, %b): f32[4]")[1]
    two = read("%a: f32[4]\n%b: f32[4]\n%0 = aten.add.Tensor(%a, %a): f32[4]")[1]
    assert difference(one, two) == difference(two, one) == "add has other arguments"


def test_an_op_with_a_body_is_no_leaf():
    _, ops = read(PROGRAM)
    leaf = [ops[0].but(below=None), ops[1]]
    assert difference(ops, leaf) == "linear runs in the place of linear"


def test_programs_that_ops_hold():
    assert texts(COND, COND.replace("0.5", "0.25")) == "mul has other arguments"
    assert texts(COND, COND.replace("-> [%2]", "-> [%b]")) == "cond has other arguments"
    assert texts(COND, COND.replace("cos.default(%b)", "sin.default(%b)")) == (
        "sin runs in the place of cos"
    )
    other = COND.replace("@no(%b: f32[4])", "@no(%b: f64[4])")
    assert texts(COND, other) == "cond has other arguments"


def test_a_subgraph_reads_nothing_of_what_is_around():
    (one,), (two,) = read(COND)[1], read(COND)[1]
    outer = subgraphs_of(two)[0].params[0]
    around = Equality()
    around.bind(Value(TYPE), outer)  # another value around, and a param is bound afresh inside
    assert difference([one], [two], around) is None


def shared(text: str) -> list[Op]:
    """A call with a body that it shares with others."""
    values, ops = read(text)
    params = (values["p"],)
    body = RecordedBody(params, tuple(ops), ops[-1].outs)
    operands = tuple(Value(param.type) for param in params)
    out = Value(ops[-1].outs[0].type)
    return [Op("f", operands, {}, out, (out,), origin=HERE, below=body)]


INNER = "%p: f32[4]\n%0 = aten.mul.Tensor(%p, 0.5): f32[4]\n%1 = aten.sin.default(%0): f32[4]"


@pytest.mark.parametrize("instantiated", [False, True])
def test_bodies_that_calls_share(instantiated):
    one, same, other = shared(INNER), shared(INNER), shared(INNER.replace("0.5", "0.7"))
    if instantiated:
        assert one[0].body is not None
    assert difference(one, same) is None
    assert difference(one, other) == "mul has other arguments"


def test_a_shared_body_is_compared_once():
    class Counting(Equality):
        seen: list[Op] = []  # noqa: RUF012 - of this test

        def op(self, one, other):
            self.seen.append(one)
            super().op(one, other)

    one, two = shared(INNER), shared(INNER)
    context = Counting()
    context.ops(one, two)
    before = len(context.seen)
    context.shared(one[0].below, two[0].below)
    assert len(context.seen) == before


def test_what_was_seen_inside_is_one_for_what_follows():
    """A backward reads values of a body that somebody has looked into."""

    def with_reader(of: int) -> list[Op]:
        (call,) = shared(INNER)
        inner = call.body[of].outs[0]
        out = Value(TYPE)
        return [call, Op("reads", (inner,), {}, out, (out,), origin=HERE)]

    assert difference(with_reader(0), with_reader(0)) is None
    assert difference(with_reader(0), with_reader(1)) == "reads has other arguments"


def write_to(offset: int, *, followed: bool = True, shape: int = 2) -> list[Op]:
    base, out = Value(TYPE), Value(TYPE)
    args = (base, [shape], [1], offset)
    step = ViewStep(AS_STRIDED, args, {}, base, 0, grad_mode=True, followed=True)
    fill = Write(torch.ops.aten.fill_.Scalar, (step,), followed)
    return [Op(fill, (base, (1.0,)), {}, out, (out,), origin=HERE, writes=True)]


def test_views_that_are_written():
    assert difference(write_to(1), write_to(1)) is None
    assert difference(write_to(1), write_to(2)) == "fill_ writes to another view"
    assert difference(write_to(1), write_to(1, shape=3)) == "fill_ writes to another view"
    assert difference(write_to(1), write_to(1, followed=False)) == (
        "fill_ runs in the place of fill_"
    )


def test_calls_of_modules_are_one_by_path_and_class():
    def call(path: str, kind: str = "torch.nn.Linear") -> list[Op]:
        return [Op(ModuleCall(path, "Linear", kind), (), {}, None, (), origin=HERE, below=[])]

    assert difference(call("a"), call("a")) is None
    assert difference(call("a"), call("b")) is not None
    assert difference(call("a"), call("a", "torch.nn.Conv2d")) is not None


def test_the_line_is_that_of_the_op():
    frame = Frame("model.py", 12, "forward")
    _, ops = read(PROGRAM)
    ops[1].origin = Origin(frame, None)
    with pytest.raises(ProgramsDiffer, match=FEWER) as found:
        Equality().ops(ops, ops[:1])
    assert found.value.at is frame
    assert found.value.place is None


def test_each_rule_of_a_context_is_asked():
    class Loose(Equality):
        def type(self, one, other):
            return one.shape == other.shape

        def leaf(self, one, other):
            return type(one) is type(other)

        def target(self, one, other):
            return True

    other = PROGRAM.replace("0.0", "7.5").replace("add.Tensor", "sub.Tensor")
    other = other.replace("alpha=2): f32[4, 4]", "alpha=3): f64[4, 4]")
    assert difference(read(PROGRAM)[1], read(other)[1]) is not None
    assert difference(read(PROGRAM)[1], read(other)[1], Loose()) is None

    class Lines(Equality):
        def origin(self, one, other):
            return one.inference == other.inference

    class Inference(Rewriter):
        def origin(self, origin):
            return replace(origin, inference=True)

    ops = read(PROGRAM)[1]
    assert difference(ops, Inference().ops(ops)) is None
    assert difference(ops, Inference().ops(ops), Lines()) == "linear runs in the place of linear"


def test_a_copy_is_equal():
    """What one engine copies, the other finds to be the same."""
    for text in (PROGRAM, COND):
        ops = read(text)[1]
        assert difference(ops, Rewriter().ops(ops)) is None


def test_closed_programs():
    values, ops = read("%a: f32[4]\n%b: f32[4]\n%0 = aten.sub.Tensor(%a, %b): f32[4]")
    a, b = values["a"], values["b"]
    one = Subgraph("", (a, b), tuple(ops), ops[0].outs)
    assert equal(one, one, Equality())
    assert not equal(one, replace(one, params=(b, a)), Equality())
    assert not equal(one, replace(one, params=(a,)), Equality())
    assert not equal(one, replace(one, result=(a,)), Equality())


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (0.0, -0.0, False),
        (0.0, 0, False),
        (True, 1, False),
        (float("nan"), float("nan"), True),
        (complex(0, -0.0), complex(0, 0.0), False),
        (slice(1, 2), slice(1, 2), True),
        (torch.float32, torch.float64, False),
        ("a", "a", True),
    ],
)
def test_constants(one, other, same):
    assert same_constant(one, other) is same
    assert Equality().tree(one, other) is same


# ---- numbers ------------------------------------------------------------------------------------

add, mul = torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor


def test_calls_are_one_by_operator_operands_and_constants():
    a, b = Value(TYPE), Value(TYPE)
    number = ValueNumbers().call
    first = number(add, ((a, b), {"alpha": 1}))
    assert number(add, ((a, b), {"alpha": 1})) == first
    others = [
        number(mul, ((a, b), {"alpha": 1})),
        number(add, ((b, a), {"alpha": 1})),
        number(add, ((a, a), {"alpha": 1})),
        number(add, ((a, b), {"alpha": 1.0})),
        number(add, ((a, b), {"alpha": True})),
        number(add, ((a, [b]), {"alpha": 1})),
        number(add, ((a, b, 0.0), {})),
        number(add, ((a, b, -0.0), {})),
    ]
    assert len({first, *others}) == 1 + len(others)
    assert number(add, ((a, b, -0.0), {})) == others[-1]


def test_operands_that_the_same_call_makes():
    numbers, a = ValueNumbers(), Value(TYPE)
    one, two, three = Value(TYPE), Value(TYPE), Value(TYPE)
    for value, factor in ((one, 2), (two, 2), (three, 3)):
        numbers.known[value] = numbers.call(mul, (a, factor))
    first = numbers.call(add, ((one, 1), {}))
    assert numbers.call(add, ((two, 1), {})) == first
    assert numbers.call(add, ((three, 1), {})) != first
    assert numbers.of(a) != numbers.of(Value(TYPE))


def test_calls_that_hold_programs_are_one_by_what_these_do():
    numbers, (op,) = ValueNumbers(), read(COND)[1]

    def of(text: str) -> int:
        return numbers.call("cond", (op.args[0], *subgraphs_of(read(text)[1][0]), op.args[-1]))

    first = of(COND)
    assert of(COND) == first
    assert of(COND.replace("0.5", "0.25")) != first
    assert of(COND.replace("-> [%1]", "-> [%a]")) != first
    assert of(COND.replace("aten.cos", "aten.sin")) != first
