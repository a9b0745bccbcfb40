"""Packed sequences: packing follows the data, and a recurrent network asks what it has packed."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

import foretrace
from tests.against_eager.test_from_data import ROUTES, exported, given, joint, same, trained
from tests.support.turns import crossed, some

LENGTHS = [torch.tensor(n) for n in ([6, 2, 3, 1], [5, 6, 1, 1], [6, 6, 6, 6], [5, 3, 3, 1])]


class Recurrent(nn.Module):
    """Reads padded sequences as far as they go."""

    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.rnn = kind(3, 4, batch_first=True, **options)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, state = self.rnn(packed)
        padded, ends = pad_packed_sequence(out, batch_first=True, padding_value=0.5)
        last = state[1] if isinstance(state, tuple) else state
        return padded.cos().sum() + last.sin().sum() + ends.sum()


class Fixed(Recurrent):
    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return super().forward(x, torch.tensor([6, 2, 3, 1]))


KINDS: dict[str, Any] = {
    "lstm": lambda: Recurrent(nn.LSTM),
    "lstm of two layers": lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True),
    "projected": lambda: Recurrent(nn.LSTM, proj_size=2),
    "gru": lambda: Recurrent(nn.GRU, num_layers=2),
    "turned gru": lambda: Recurrent(nn.GRU, bidirectional=True),
    "tanh": lambda: Recurrent(nn.RNN),
    "relu": lambda: Recurrent(nn.RNN, nonlinearity="relu"),
    "fixed": lambda: Fixed(nn.LSTM),
}


def inputs(lengths: Tensor) -> tuple[Tensor, Tensor]:
    return torch.randn(4, 6, 3), lengths


@pytest.mark.parametrize(("kind", "route"), crossed(KINDS, ROUTES))
def test_trains(kind: str, route: str) -> None:
    live = KINDS[kind]()
    eager, first = copy.deepcopy(live), inputs(LENGTHS[0])
    call = ROUTES[route](live, foretrace.capture(live, given(first), verify=True), first)
    for other in (first, inputs(LENGTHS[0])):
        assert same(trained(live, call, other), trained(eager, eager, other))


@pytest.mark.filterwarnings("ignore:the graph is for inputs that answer:UserWarning")
@pytest.mark.parametrize("kind", some(4, KINDS))
def test_joint_and_file(kind: str) -> None:
    live = KINDS[kind]()
    eager, first = copy.deepcopy(live), inputs(LENGTHS[0])
    cut = foretrace.capture(live, given(first), verify=True).cut("joint", loss=0)
    module = exported(live, first)
    for other in (first, inputs(LENGTHS[0])):
        assert same(joint(live, cut, other), trained(eager, eager, other))
        assert same([module(*other)], [eager(*other)])


@pytest.mark.parametrize("kind", some(4, KINDS, 2))
def test_other_lengths_are_captured_again(kind: str) -> None:
    live = KINDS[kind]()
    eager, compiled = copy.deepcopy(live), foretrace.compile(live, fullgraph=True)
    for lengths in (*LENGTHS, *LENGTHS):
        other = inputs(lengths)
        assert same(trained(live, compiled, other), trained(eager, eager, other))
    assert len(compiled.recaptures) == (0 if kind == "fixed" else 3)


def test_a_graph_raises_on_other_lengths() -> None:
    module = KINDS["gru"]()
    cut = foretrace.capture(module, given(inputs(LENGTHS[0]))).cut("aten")
    with pytest.raises(RuntimeError, match="guard broken"):
        cut(*inputs(LENGTHS[1]))


def packs(x: Tensor, lengths: Tensor) -> Tensor:
    packed = pack_padded_sequence(x.sin(), lengths, enforce_sorted=False)
    return packed.data.pow(2).sum() + packed.batch_sizes.shape[0]


@pytest.mark.parametrize("route", ROUTES)
def test_packing_alone_runs_on_other_lengths(route: str) -> None:
    many = [(torch.randn(7, 4, 3), lengths) for lengths in LENGTHS]
    call = ROUTES[route](packs, foretrace.capture(packs, given(many[0]), verify=True), many[0])
    for each in many:
        assert same(trained(packs, call, each), trained(packs, packs, each))


def of_lists(x: Tensor, y: Tensor) -> Tensor:
    packed = pack_sequence([x, y[:2], y[:1]])
    padded, _ = pad_packed_sequence(packed, total_length=8)
    return padded.exp().sum()


@pytest.mark.parametrize("route", ROUTES)
def test_a_list_is_packed(route: str) -> None:
    both = (torch.randn(5, 2), torch.randn(3, 2))
    call = ROUTES[route](of_lists, foretrace.capture(of_lists, given(both), verify=True), both)
    assert same(trained(of_lists, call, both), trained(of_lists, of_lists, both))


@pytest.mark.parametrize("kind", ["lstm", "gru", "tanh"])
def test_trains_under_autocast(kind: str) -> None:
    live = KINDS[kind]()
    first = inputs(LENGTHS[0])

    def step(x: Tensor, lengths: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return live(x, lengths)

    expected = step(*first)
    wanted = torch.autograd.grad(expected, tuple(live.parameters()))
    found, gradients = foretrace.capture(step, first).cut("joint", loss=0)(*first)
    assert torch.equal(found, expected)
    by_name = [each for each in gradients.values() if each is not None]
    assert len(by_name) == len(wanted)
    assert all(map(torch.equal, by_name, wanted))
