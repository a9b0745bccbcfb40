"""What counts from the start of memory, once a write has made new memory of it."""

import pytest
import torch

from foretrace.errors import Refusal
from foretrace.ir.program.op import Op
from foretrace.tracer.functionalization.alias import alias_of
from foretrace.tracer.functionalization.storage_offsets import moved_by
from tests.support.trees import assert_tree, recorded

X = torch.zeros(8)[2:]


def strided_after(offset: int, size: int = 2) -> list[Op]:
    def fn(x):
        x.mul_(2)
        return x.as_strided((size,), (1,), offset)

    return recorded(fn, X).ops


def test_an_offset_is_counted_in_the_graph_s_memory() -> None:
    assert_tree(
        strided_after(3)[1:],
        """\
%1 = aten.as_strided.default(%0, [2], [1], 1): f32[2] at 1
""",
    )


def test_an_offset_that_is_the_tensor_s_own_is_left_out() -> None:
    assert_tree(
        strided_after(None)[1:],
        """\
%1 = aten.as_strided.default(%0, [2], [1]): f32[2]
""",
    )


def test_an_offset_before_a_write_is_as_the_program_gives_it() -> None:
    assert_tree(
        recorded(lambda x: x.as_strided((2,), (1,), 3), X).ops,
        """\
%0 = aten.as_strided.default(%x, [2], [1], 3): f32[2] at 3
""",
    )


@pytest.mark.parametrize(("offset", "size"), [(1, 2), (6, 3)], ids=["before", "behind"])
def test_what_lies_beside_the_written_tensor_is_refused(offset: int, size: int) -> None:
    with pytest.raises(Refusal, match="memory beside that of the tensor"):
        strided_after(offset, size)


def test_how_far_eager_has_moved_and_that_the_program_sees_it_there() -> None:
    def fn(x):
        before = moved_by(alias_of(x))
        x.mul_(2)
        row = x[1:3]
        return before, moved_by(alias_of(x)), row.storage_offset()

    assert [output.value for output in recorded(fn, X).outputs] == [0, 2, 3]
