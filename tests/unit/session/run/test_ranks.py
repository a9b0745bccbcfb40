"""torch.compiler.config.compile_on_one_rank: a graph names no device by its index."""

import pytest
import torch
from torch.compiler import config

import foretrace

pytestmark = pytest.mark.skipif(
    not hasattr(config, "compile_on_one_rank"), reason="torch has it from 2.14 on"
)


def program(x):
    return x * torch.zeros(3, device=x.device)


def test_a_graph_of_a_device_is_refused():
    x = torch.randn(3)
    with config.patch(compile_on_one_rank=True):
        with pytest.raises(foretrace.Refusal, match="compile_on_one_rank") as told:
            foretrace.capture(program, (x,), target="cuda:sm90")
        assert told.value.kind == "unsupported"
        for target in (None, "cpu"):
            graph = foretrace.capture(program, (x,), target=target).cut("aten").graph_module.graph
            given = [each for node in graph.nodes for each in node.kwargs.values()]
            devices = [each for each in given if isinstance(each, torch.device)]
            assert devices
            assert all(each.index is None for each in devices)
    assert foretrace.capture(program, (x,), target="cuda:sm90").cut("aten")
