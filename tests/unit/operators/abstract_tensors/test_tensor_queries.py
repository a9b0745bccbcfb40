"""What a program asks of tensors is noted, and answered by the session or refused."""

import sys

import pytest
import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.symbols.symbols import Symbols
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value
from foretrace.operators.abstract_tensors.tensor_queries import TensorAnswers, TensorQueries
from foretrace.operators.abstract_tensors.tensor_types import Types

ROWS = TensorType((2, 3), (3, 1), torch.float32, torch.device("cpu"))


def test_a_question_of_the_program_for_strides_is_noted():
    types = Types(Symbols(lambda: None))
    tensor = types.abstract(Value(ROWS))
    assert not types.queries.strides
    assert tensor.stride() == (3, 1)
    assert types.queries.strides


def test_a_question_of_foretrace_for_strides_is_not():
    queries = TensorQueries(Symbols(lambda: None))
    inside = compile("import sys; at = sys._getframe()", torch_api.__file__, "exec")
    found = {}
    exec(inside, found)  # noqa: S102 - code with a file of foretrace
    queries.note_strides(found["at"])
    assert not queries.strides
    queries.note_strides(sys._getframe())
    assert queries.strides


def test_without_a_session_versions_are_refused():
    tensor = Types(Symbols(lambda: None)).abstract(Value(ROWS))
    with pytest.raises(Refusal, match="is a view"):
        _ = tensor._version


def test_a_session_answers():
    class Answers(TensorAnswers):
        def version(self, tensor):
            return 7

    types = Types(Symbols(lambda: None))
    types.queries.answer_by(Answers())
    assert types.abstract(Value(ROWS))._version == 7
