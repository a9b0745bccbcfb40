"""Which tensors have no data is torch's to say: not each such is an instance of FakeTensor."""

import pytest
import torch
from torch._subclasses import fake_tensor

import foretrace
from foretrace import torch_api
from foretrace.torch_api import fake


@pytest.mark.skipif(not hasattr(fake_tensor, "is_fake_tensor"), reason="torch 2.15 has it")
def test_it_is_torch_that_is_asked():
    assert fake.ASKED is fake_tensor.is_fake_tensor


def test_what_is_one():
    mode = torch_api.FakeTensorMode()
    assert torch_api.is_fake(mode.from_tensor(torch.ones(2)))
    assert torch_api.is_fake(mode.from_tensor(torch.nn.Parameter(torch.ones(2))))
    assert not any(map(torch_api.is_fake, (torch.ones(2), torch.ones(2, device="meta"), 2)))


def test_the_data_of_one_of_a_plain_class_is_not_asked(monkeypatch):
    given = torch.ones(3)
    monkeypatch.setattr(torch_api, "is_fake", lambda each: each is given)
    cut = foretrace.capture(torch.cos, (given,)).cut("aten")
    assert torch.equal(cut(x := torch.randn(3)), x.cos())
    with pytest.raises(foretrace.Refusal, match="asks for a number"):
        foretrace.capture(lambda x: x * 2 if x.sum() > 0 else x, (given,), values="guard")
