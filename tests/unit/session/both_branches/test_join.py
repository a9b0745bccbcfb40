"""What two runs do from some place on: compared, and written down once."""

import pytest
import sympy
import torch

from foretrace.errors import Frame
from foretrace.ir.program.equality import ProgramsDiffer
from foretrace.ir.program.interface import Input, Role
from foretrace.ir.program.op import AS_STRIDED, Op, ViewStep, Write
from foretrace.ir.program.origin import Origin
from foretrace.ir.program.walk import subgraphs_of
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value
from foretrace.session.both_branches.join import Joining, tail
from foretrace.session.both_branches.op_equality import TwoRuns
from tests.support.notation import read, write
from tests.support.trees import COND

TYPE = TensorType((4,), (1,), torch.float32, torch.device("cpu"))
CHAIN = """
%a: f32[4]
%b: f32[4]
%0 = aten.sin.default(%a): f32[4]
%1 = aten.add.Tensor(%0, %b, alpha=2): f32[4]
"""


def joining(*common: tuple[Value, Value]) -> Joining:
    known = TwoRuns()
    for one, other in common:
        known.unify(one, other)
    return Joining(known)


def two(
    text: str, other: str = ""
) -> tuple[dict[str, Value], list[Op], dict[str, Value], list[Op]]:
    return (*read(text), *read(other or text))


def test_what_both_do_goes_on_in_the_words_of_one():
    mine, ones, theirs, others = two(CHAIN)
    join = joining((mine["a"], theirs["a"]), (mine["b"], theirs["b"]))
    copies = join.walk(ones, others, 0)
    assert write(copies) == write(ones)
    assert copies[0].operands == (mine["a"],)
    assert not join.pairs
    assert join.ops_of[ones[1]] is join.ops_of[others[1]] is copies[1]
    assert copies[0].outs[0] not in (*ones[0].outs, *others[0].outs)


def test_what_only_one_of_them_has_is_a_pair():
    mine, ones, theirs, others = two(CHAIN)
    join = joining((mine["a"], theirs["a"]))
    copies = join.walk(ones, others, 3)
    ((values, pair),) = join.pairs.items()
    assert values == (mine["b"], theirs["b"])
    assert copies[1].operands == (copies[0].outs[0], pair.value)
    assert pair.place == (3, 1)


def test_a_value_with_two_partners_in_one_op():
    mine, ones = read("%a: f32[4]\n%0 = aten.add.Tensor(%a, %a): f32[4]")
    theirs, others = read("%b: f32[4]\n%c: f32[4]\n%0 = aten.add.Tensor(%b, %c): f32[4]")
    join = joining()
    (copy,) = join.walk(ones, others, 0)
    pairs = [join.pairs[mine["a"], theirs[name]].value for name in "bc"]
    assert list(copy.args) == pairs
    assert pairs[0] is not pairs[1]


def test_a_result_is_followed_where_it_is_on_either_side():
    _, ones, _, others = two(
        "%a: f32[4]\n%0 = aten.sin.default(%a): f32[4]",
        "%a: f32[4] grad\n%0 = aten.sin.default(%a): f32[4] grad",
    )
    join = joining()
    (copy,) = join.walk(ones, others, 0)
    assert copy.operands[0].type.requires_grad
    assert copy.outs[0].type.requires_grad  # that of the run whose operands are as those now


@pytest.mark.parametrize(
    ("old", "new"),
    [("sin", "cos"), ("alpha=2", "alpha=3"), ("(%0, %b", "(%b, %0"), ("(%0, %b", "(%0, %0")],
)
def test_the_place_where_they_are_not_one(old, new):
    mine, ones, theirs, others = two(CHAIN, CHAIN.replace(old, new))
    join = joining((mine["a"], theirs["a"]), (mine["b"], theirs["b"]))
    with pytest.raises(ProgramsDiffer) as found:
        join.walk(ones, others, 2)
    assert found.value.place == (2, 0 if old == "sin" else 1)


def test_what_cannot_be_a_result():
    _, ones, _, others = two(
        "%a: f32[4]\n%0 = aten.sum.default(%a): f32[]",
        "%a: f32[8]\n%0 = aten.sum.default(%a): f32[]",
    )
    with pytest.raises(ProgramsDiffer, match=r"by \[1\] on the one side, f32\[8\] on cpu"):
        joining().walk(ones, others, 0)


def test_a_program_that_both_hold():
    mine, ones, theirs, others = two(COND)
    join = joining((mine["p"], theirs["p"]))
    copies = join.walk(ones, others, 0)
    assert [held.name for held in subgraphs_of(copies[0])] == ["yes", "no"]
    body = subgraphs_of(copies[0])[0]
    assert body.ops[0].operands == body.params
    assert body.result == body.ops[0].outs
    assert body.params != subgraphs_of(ones[0])[0].params
    assert len(join.pairs) == 1  # `x`: what the program reads is a param of its own
    with pytest.raises(ProgramsDiffer):
        joining().walk(ones, read(COND.replace("0.5", "0.25"))[1], 0)


def test_a_write_to_a_view_goes_on_with_its_base():
    def write_to(base: Value) -> list[Op]:
        args, out = (base, [2], [1], 1), Value(TYPE)
        step = ViewStep(AS_STRIDED, args, {}, base, 0, grad_mode=True, followed=True)
        fill = Write(torch.ops.aten.fill_.Scalar, (step,), True)
        return [Op(fill, (base, (1.0,)), {}, out, (out,), origin=Origin(None, None), writes=True)]

    join = joining()
    (copy,) = join.walk(write_to(Value(TYPE)), write_to(Value(TYPE)), 0)
    (pair,) = join.pairs.values()
    assert copy.args[0] is copy.target.steps[0].base is copy.target.steps[0].args[0] is pair.value


def test_numbers_of_the_other_run_are_those_of_the_first():
    one, other = (sympy.Symbol(name, integer=True) for name in ("u0", "u9"))
    join = joining()
    join.numbers[other] = one
    assert join.tree((one + 1, slice(one, None)), (other + 1, slice(other, None)))
    assert not join.tree(other, one)
    sized = [TensorType((n,), (1,), torch.float32, torch.device("cpu")) for n in (one, other)]
    assert join.type(*sized)


def test_what_both_did_before():
    mine, ones, theirs, others = two(CHAIN)
    known = TwoRuns()
    with pytest.raises(ProgramsDiffer):
        known.ops(ones, others)  # nobody has said that `a` is `a`
    for name in "ab":
        known.unify(mine[name], theirs[name])
    known.ops(ones, others)
    assert known.there[ones[1].outs[0]] is others[1].outs[0]
    with pytest.raises(ProgramsDiffer):
        known.unify(mine["a"], theirs["b"])


def test_the_lines_of_both_are_named():
    mine, ones, theirs, others = two(CHAIN, CHAIN.replace("sin", "cos"))
    ones[0].origin, others[0].origin = (Origin(Frame("m.py", n, "f"), None) for n in (1, 2))
    with pytest.raises(ProgramsDiffer, match=r"m.py:1 in f and m.py:2 in f"):
        joining((mine["a"], theirs["a"])).known.ops(ones, others)


def test_constants_of_the_same_bits_meet_when_they_are_read():
    known, values = TwoRuns(), [Value(TYPE) for _ in range(4)]
    for value, number in zip(values, (0.0, 0.0, -0.0, 0.0), strict=True):
        known.constants[value] = Input(value, Role("constant", ""), tensor=torch.full((4,), number))
    assert not known.value(values[0], values[2])
    assert known.value(values[0], values[1])
    assert not known.value(values[0], values[3])  # it has met another one


def test_how_many_ops_at_the_end_are_the_same_calls():
    ones = read(CHAIN)[1]
    assert tail(ones, read(CHAIN)[1]) == 2
    assert tail(ones, read(CHAIN.replace("sin", "cos"))[1]) == 1
    assert tail(ones, read(CHAIN.replace("add", "sub"))[1]) == 0
