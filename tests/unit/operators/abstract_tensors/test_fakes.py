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


def test_one_of_a_plain_class_is_refused(monkeypatch):
    given = torch.ones(3)
    monkeypatch.setattr(torch_api, "is_fake", lambda each: each is given)
    assert torch.equal(foretrace.capture(torch.cos, (x := torch.ones(3),)).cut("aten")(x), x.cos())
    with pytest.raises(foretrace.Refusal, match="a FakeTensor, without data"):
        foretrace.capture(torch.cos, (given,))
