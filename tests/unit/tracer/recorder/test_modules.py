"""Module calls while a program is recorded."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import foretrace
from foretrace.tracer.functionalization.builder import Unmonitored
from foretrace.tracer.functionalization.run_state import Scope
from foretrace.tracer.recorder.module_calls import module_calls


class Scale(nn.Module):
    def forward(self, x):
        return x * 2


class Fails(nn.Module):
    def forward(self, x):
        raise LookupError("of the program")


def paths(program):
    """The path of the module that each op with a value belongs to."""
    found = {}

    def walk(ops):
        for op in ops:
            if op.outs:
                found[str(op.target)] = str(op.origin.module)
            else:
                walk(op.region or ())

    walk(program.recorded.ops)
    return found


def test_hooks_belong_to_the_call():
    model = nn.Sequential(Scale())
    model[0].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    model[0].register_forward_hook(lambda module, args, out: out - 3)
    x = torch.randn(3)
    program = foretrace.capture(model, (x,))
    assert paths(program) == {
        "aten.add.Tensor": "0",
        "aten.mul.Tensor": "0",
        "aten.sub.Tensor": "0",
    }
    assert torch.equal(program.cut("export")(x), model(x))


def test_torchs_own_call_afterwards():
    before, x = nn.Module.__call__, torch.randn(3)
    foretrace.capture(Scale(), (x,))
    assert nn.Module.__call__ is before
    with pytest.raises(foretrace.Refusal, match="of the program") as refused:
        foretrace.capture(nn.Sequential(Fails()), (x,))
    assert "Fails" in str(refused.value)
    assert nn.Module.__call__ is before


def recorder():
    """As much of one as a module call touches."""
    return SimpleNamespace(
        scope=Scope(), unwatched=Unmonitored(),
        sources=SimpleNamespace(here=lambda above: None), note_failure=lambda error: None,
    )  # fmt: skip


def test_one_that_was_taken_is_torchs_afterwards():
    seen, x = recorder(), torch.randn(3)
    with module_calls(seen, {}):
        taken = nn.Module.__call__
        Scale()(x)
    assert [str(op.target) for op in seen.scope.ops] == ["Scale"]
    assert torch.equal(taken(Scale(), x), x * 2)
    assert len(seen.scope.ops) == 1


def test_another_thread_is_not_recorded():
    seen, x = recorder(), torch.randn(3)
    with module_calls(seen, {}), ThreadPoolExecutor() as pool:
        assert torch.equal(pool.submit(Scale(), x).result(), x * 2)
    assert not seen.scope.ops
