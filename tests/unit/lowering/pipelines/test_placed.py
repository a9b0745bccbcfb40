"""`placed`: views by strides count from where a copy begins, and so do views of views."""

from typing import Any

from foretrace.autograd.eager_history.history_ops import HISTORY
from foretrace.ir.program.origin import Choice
from foretrace.lowering.pipelines.storage_offsets import placed
from tests.support.notation import read

LITERAL_TYPES = Choice(HISTORY, "spelled out", "a test")
TREE = """\
%x: f32[2, 4] at 16
%copy = aten.clone.default(%x): f32[2, 4] at 16
%part = aten.select.int(%copy, 0, 1): f32[4] at 20
%by = aten.as_strided.default(%copy, [2], [1], 18): f32[2] at 18
%below = aten.as_strided.default(%part, [2], [1], 21): f32[2] at 21
%other = aten.as_strided.default(%x, [2], [1], 17): f32[2] at 17
"""
OFFSETS = {"clone": 0, "select": 4}


def test_what_views_a_copy_is_counted_from_its_beginning() -> None:
    values, (copy, *others) = read(TREE)
    ops = [copy.but(choice=LITERAL_TYPES), *others]

    def infer(target: Any, args: Any, _: object) -> Any:
        """The types as torch gives them: a copy begins at 0, a view where its base does."""
        name = str(target).split(".")[1]
        type = next(op.outs[0].type for op in ops if op.target is target)
        return type.but(offset=OFFSETS[name] if name in OFFSETS else args[3])

    found = {name: op for op in placed(ops, infer) for name, v in values.items() if v in op.outs}
    assert found["by"].args[3] == 2
    assert found["below"].args[3] == 5
    assert found["other"].args[3] == 17
    assert found["by"].piece_of is not None
    assert found["other"] is others[-1]
