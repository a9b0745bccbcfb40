"""Types of results by each kind of kernel: FakeTensor, the CPU's, and sizes that depend on data."""

import pytest
import torch

from foretrace.errors import Refusal
from foretrace.ir.symbols.symbols import Symbols
from foretrace.ir.values.tensor_type import TensorType
from foretrace.operators.abstract_tensors.tensor_types import Types
from foretrace.operators.inference.cpu_kernels import CpuKernels
from foretrace.operators.inference.fake_kernels import FakeKernels
from foretrace.operators.inference.infer import Inference
from foretrace.operators.schemas.cache import Learned

aten = torch.ops.aten
CPU = torch.device("cpu")
ROWS = TensorType((2, 3), (3, 1), torch.float32, CPU)
COLUMNS = TensorType((3, 2), (1, 3), torch.float32, CPU)


def types() -> Types:
    return Types(Symbols(lambda: None))


@pytest.mark.parametrize("kernels", [CpuKernels, lambda types: FakeKernels(types, None)])
def test_kernels_agree_about_a_result(kernels):
    found = kernels(types()).ask(aten.add.Tensor, (ROWS, ROWS), {})
    assert found == ROWS


@pytest.mark.parametrize("kernels", [CpuKernels, lambda types: FakeKernels(types, None)])
def test_the_operands_after_a_call(kernels):
    call = (ROWS, 0), {}
    found = kernels(types()).ask(aten.unsqueeze_.default, *call, after=True)
    assert [type.shape for type in found] == [(1, 2, 3)]


@pytest.mark.parametrize("kernels", [CpuKernels, lambda types: FakeKernels(types, None)])
def test_a_size_that_depends_on_data_is_refused(kernels):
    with pytest.raises(Refusal, match="depends on data"):
        kernels(types()).ask(aten.nonzero.default, (ROWS,), {})


def test_inference_returns_an_operand_by_its_position():
    inference = Inference(types(), Learned())
    found = inference.infer(aten.add_.Tensor, (ROWS, COLUMNS.but(shape=(2, 3))), {})
    assert found.operand == 0


def test_a_size_that_depends_on_data_is_a_symbol_with_the_number_of_the_run():
    inference, real = Inference(types(), Learned()), torch.tensor([[1.0, 0.0, 2.0]] * 2)
    call = aten.nonzero.default, (ROWS,), {}
    found = inference.from_data(*call, aten.nonzero.default(real), [{}])
    rows, columns = found.shape
    assert rows.free_symbols
    assert inference.symbols.hint(rows) == 4
    assert columns == 2


def test_one_operand_has_one_symbol_for_its_count():
    inference, real, known = Inference(types(), Learned()), torch.ones(2, 3), [{}]
    call = aten.nonzero.default, (ROWS,), {}
    one, other = (inference.from_data(*call, aten.nonzero.default(real), known) for _ in range(2))
    assert one.shape == other.shape
