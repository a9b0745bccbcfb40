"""Objects as records and JSON, and back."""

import json

import pytest
import sympy
import torch

from foretrace.errors import Refusal
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import Origin
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value
from foretrace.serialization.schema.container_json import Classes
from foretrace.serialization.schema.decode import Decoder
from foretrace.serialization.schema.encode import Encoder
from foretrace.serialization.schema.field_checks import check, instance_of, optional, tuple_of
from foretrace.serialization.schema.names import named_json, named_object
from foretrace.serialization.schema.sympy_json import number_json, number_of

S, T = sympy.Symbol("s0", integer=True), sympy.Symbol("s1", integer=True)


def round_trip(item):
    encoder = Encoder(lambda tensor: 0)
    found = encoder.item(item)
    rows, found = json.loads(json.dumps([encoder.rows, found]))
    return Decoder(rows, [], [], Classes()).item(found)


@pytest.mark.parametrize(
    "item",
    [
        (1, [2.5, None], {"a": (True,)}),
        {1, 2},
        slice(0, None, 2),
        torch.Size([2, 3]),
        -0.0,
        float("inf"),
        1 + 2j,
        b"\x00\xff",
    ],
    ids=str,
)
def test_plain_data(item) -> None:
    assert repr(round_trip(item)) == repr(item)


@pytest.mark.parametrize(
    "item",
    [
        torch.float16,
        torch.strided,
        torch.channels_last,
        torch.device("cpu"),
        torch.ops.aten.add.Tensor,
        torch.ops.higher_order.cond,
        int,
        ...,
    ],
    ids=str,
)
def test_an_object_by_name(item) -> None:
    ((kind, name),) = named_json(item).items()
    assert named_object(kind, name) == item


def test_an_unknown_name_is_damage() -> None:
    with pytest.raises(Refusal, match="there is no dtype"):
        named_object("dtype", "int128")
    with pytest.raises(Refusal, match="does not have"):
        named_object("op", "nobody::nothing")


def test_a_value_is_one_object_after_a_round_trip() -> None:
    kind = TensorType((2, 3), (3, 1), torch.float32, torch.device("cpu"))
    value, equal = Value(kind, "x"), Value(kind, "x")
    one, same, other = round_trip((value, value, equal))
    assert one is same
    assert one is not other
    assert one.type == kind


def test_an_op_that_is_a_piece_of_itself_is_damage() -> None:
    origin = Origin(None, None, grad_mode=True)
    ops = [Op(torch.ops.aten.sin.default, (), {}, None, (), origin=origin) for _ in range(3)]
    decoder = Decoder([], [], [], Classes())
    decoder.objects[:] = ops
    decoder.join([[0, 2], [1, 2]])
    assert ops[0].piece_of is ops[1].piece_of is ops[2]
    with pytest.raises(Refusal, match="piece of itself"):
        decoder.join([[0, 1], [1, 2], [2, 0]])
    with pytest.raises(Refusal, match="nothing at 3"):
        decoder.join([[0, 3]])


def test_a_record_of_wrong_fields_is_damage() -> None:
    with pytest.raises(Refusal, match="record 0"):
        Decoder([["value", 1, "x"]], [], [], Classes())
    with pytest.raises(Refusal, match="nothing at 3"):
        Decoder([["list", {"@": 3}]], [], [], Classes())


@pytest.mark.parametrize("size", [S * 2 + T, sympy.floor(S / 3), sympy.Max(S, T), sympy.Eq(S, 4)])
def test_sizes(size) -> None:
    assert number_of(json.loads(json.dumps(number_json(size)))) == size


def test_a_symbol_must_be_an_identifier() -> None:
    with pytest.raises(Refusal, match="no expression"):
        number_of(["symbol", "s0); print(1", {}])


def test_a_check_names_the_first_wrong_field() -> None:
    fields = {"a": optional(instance_of(int)), "b": tuple_of(instance_of(str), instance_of(bool))}
    assert check(fields, {"a": None, "b": ("x", True)}) == ""
    assert check(fields, {"a": True, "b": ("x", True)}).startswith("a is True")
    assert check(fields, {"a": 1, "b": ("x",)}).startswith("b is")
