"""Every node says why it is there: the user's line, each level below, the derivative."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import foretrace
from foretrace.frontends.cli.load import user_program
from foretrace.inspect.explain.explanation import Explanation, Link
from tests.programs import CASES
from tests.programs.registry import Case
from tests.support.turns import ZOO, one_in

ROOT = Path(__file__).parents[2]


class Normed(nn.Module):
    """A layer, a norm with buffers, a bend in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)  # the layer
        return F.relu(self.norm(y), inplace=True).sum()


def written_in_place(x: Tensor) -> Tensor:
    y = x * 2
    y[1:].mul_(3)
    y += 1
    return (y * x).sum()


def under_no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.abs().max()
    return (x / scale).sum()


def split(x: Tensor) -> Tensor:
    first, second = x.chunk(2)
    return (first * second).sum()


def reshaped(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0] * x.shape[1]).sin().sum()


def attention(*leading: int) -> tuple[Any, tuple[Tensor, ...]]:
    q, k, v = (torch.randn(*leading, 8, 4, requires_grad=True) for _ in range(3))
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v).sum(), (q, k, v)


def example(spec: str) -> tuple[Any, Any, Any]:
    with user_program(f"{ROOT}/examples/{spec}") as user:
        return user.fn, user.args, user.kwargs


def wants(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


PROGRAMS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "attention 2-D": lambda: example("attention.py"),
    "attention 4-D": lambda: example("attention.py:four_d"),
    "rms_norm": lambda: example("rms_norm.py:total"),
    "batch norm": lambda: (Normed(), (wants(5, 4),)),
    "in place": lambda: (written_in_place, (wants(3, 2),)),
    "no_grad": lambda: (under_no_grad, (wants(3),)),
    "several results": lambda: (split, (wants(4, 2),)),
}
CUTS: dict[str, dict[str, Any]] = {
    "export": {},
    "aten": {},
    "joint": {"loss": 0},
}


def explained(cut: foretrace.Cut) -> dict[str, Explanation]:
    """Every node of a graph, and of what was kept whole in it."""
    names = list(cut.nodes)
    for path, module in cut.graph_module.named_modules():
        if path and isinstance(module, torch.fx.GraphModule):
            names += [f"{path}.{node.name}" for node in module.graph.nodes]
    return {name: cut.explain(name) for name in names}


def complete(cut: foretrace.Cut) -> None:
    for name, explanation in explained(cut).items():
        assert not explanation.missing, f"{name}\n{explanation}"
        assert explanation.links, name
        assert all(link.text.strip() for link in explanation.links), name
        assert json.loads(json.dumps(explanation.to_dict()))["node"] == name
        assert str(explanation).startswith(f"{name}: ")


@pytest.mark.parametrize("kind", CUTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_link_is_missing(name: str, kind: str) -> None:
    complete(foretrace.capture(*PROGRAMS[name]()).cut(kind, **CUTS[kind]))


@pytest.mark.parametrize("kind", CUTS)
@pytest.mark.parametrize("keep", ["linear", "Normed", "batch_norm", "Linear"])
def test_no_link_is_missing_where_ops_are_kept(keep: str, kind: str) -> None:
    program = foretrace.capture(Normed(), (wants(5, 4),))
    complete(program.cut(kind, keep=[keep], **CUTS[kind]))


@pytest.mark.parametrize("target", ["cpu", "meta", "cuda:sm80", "cuda:sm90"])
def test_no_link_is_missing_on_any_target(target: str) -> None:
    for made in (attention(1, 2), PROGRAMS["rms_norm"]()):
        complete(foretrace.capture(*made, target=target).cut("joint", loss=0))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", one_in(24, ZOO, turn=3))
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_no_link_is_missing_in_the_zoo(case: Case) -> None:
    given = case.subject()
    try:
        program = foretrace.capture(given.fn, given.args, given.kwargs)
        cuts = [
            program.cut(kind, **({"loss": case.loss} if kind == "joint" else {}))
            for kind in case.cuts
        ]
        if "joint" in case.cuts:
            cuts += program.pair(loss=case.loss)
    except foretrace.Refusal as refusal:
        if not case.may_refuse:
            raise
        pytest.xfail(f"{case.may_refuse}: {refusal}")
    for cut in cuts:
        complete(cut)


# --------------------------------------------------------------------------- what is in a path


def kinds(links: list[Link] | tuple[Link, ...]) -> list[str]:
    return [link.kind for link in links]


def the(kind: str, links: Any) -> Link:
    (found,) = [link for link in links if link.kind == kind]
    return found


def node_of(cut: foretrace.Cut, target: Any, rule: str = "") -> Explanation:
    """The first node that calls `target`, made by `rule` if one is given."""
    for node in cut.graph_module.graph.nodes:
        explanation = cut.explain(node.name)
        rules = [link.text for link in explanation.links if link.kind == "rule"]
        if node.target == target and rules == [rule] * bool(rule):
            return explanation
    raise AssertionError(f"no {target} by {rule}")


def line_number(fn: Any, marked: str) -> int:
    lines, first = inspect.getsourcelines(fn)
    (offset,) = [index for index, line in enumerate(lines) if marked in line]
    return first + offset


def test_a_forward_op_from_the_users_line_to_the_leaf() -> None:
    cut = foretrace.capture(Normed(), (wants(5, 4),)).cut("joint", loss=0)
    found = node_of(cut, torch.ops.aten.addmm.default)
    assert kinds(found.links) == ["line", "module", "module", "written", "opened", "leaf"]
    line = the("line", found.links)
    assert line.facts["file"] == __file__
    assert line.facts["line"] == line_number(Normed, "# the layer")
    assert line.facts["function"] == "Normed.forward"
    assert line.facts["code"].startswith("y = self.linear(x)")
    assert [link.facts["path"] for link in found.links if link.kind == "module"] == ["", "linear"]
    assert the("written", found.links).facts["op"] == "aten.linear.default"
    opened = the("opened", found.links)
    assert opened.facts["op"] == "aten.addmm.default"
    assert opened.facts["by"] == "CompositeImplicitAutograd"
    assert found.side == "forward"
    assert found.type == "f32[5, 6]"


def test_a_backward_op_to_the_forward_op_that_it_serves() -> None:
    cut = foretrace.capture(Normed(), (wants(5, 4),)).cut("joint", loss=0)
    found = node_of(cut, torch.ops.aten.mm.default, rule="AddmmBackward0")
    assert found.side == "backward"
    assert kinds(found.links) == ["leaf", "rule", "because"]
    assert the("rule", found.links).facts == {"name": "AddmmBackward0", "by": "derived"}
    served = the("because", found.links)
    assert served.facts["op"] == "aten.addmm.default"
    assert cut.explain(served.facts["node"]).links == list(served.path)
    assert the("line", served.path).facts["code"].startswith("y = self.linear(x)")


def test_the_gradient_of_the_loss() -> None:
    cut = foretrace.capture(Normed(), (wants(5, 4),)).cut("joint", loss=0)
    found = node_of(cut, torch.ops.aten.ones_like.default, rule="root gradient")
    assert the("rule", found.links).facts["by"] == "engine"
    assert the("because", found.links).facts["op"] == "aten.sum.default"


def test_the_sum_of_two_gradients() -> None:
    cut = foretrace.capture(written_in_place, (wants(3, 2),)).cut("joint", loss=0)
    found = node_of(cut, torch.ops.aten.add.Tensor, rule="accumulate")
    assert the("rule", found.links).facts["by"] == "engine"


def test_a_write() -> None:
    cut = foretrace.capture(written_in_place, (wants(3, 2),)).cut("aten")
    found = [e for e in explained(cut).values() if "aten.add_" in str(e)]
    assert found
    for each in found:
        assert the("written", each.links).facts["op"].startswith("aten.add_.")
        assert the("opened", each.links).facts["by"] == "functional form"


def test_a_write_through_a_view_names_the_view() -> None:
    cut = foretrace.capture(written_in_place, (wants(3, 2),)).cut("aten")
    found = next(e for e in explained(cut).values() if "aten.mul_" in str(e))
    assert "slice" in " ".join(the("written", found.links).notes)


def test_a_choice_has_its_reason_and_what_was_rejected() -> None:
    program = foretrace.capture(*attention(1, 2), target="cuda:sm80")
    found = node_of(
        program.cut("aten"), torch.ops.aten._scaled_dot_product_efficient_attention.default
    )
    choice = the("opened", found.links).facts["choice"]
    assert choice["value"] == "efficient"
    assert choice["reason"]
    assert "flash" in [rejected["value"] for rejected in choice["rejected"]]
    assert all(rejected["reason"] for rejected in choice["rejected"])


def test_an_op_that_its_target_keeps_whole() -> None:
    program = foretrace.capture(*PROGRAMS["rms_norm"](), target="cuda:sm90")
    found = node_of(program.cut("aten"), torch.ops.aten._fused_rms_norm.default)
    assert "kernel" in the("leaf", found.links).notes[0]


def test_what_the_program_ran_under_no_grad() -> None:
    cut = foretrace.capture(under_no_grad, (wants(3),)).cut("export")
    found = node_of(cut, torch.ops.aten.detach.default)
    assert "no_grad" in the("history", found.links).notes[0]


# ------------------------------------------------------------------------------- kept ops, parts


def test_an_op_that_is_kept_is_whole_on_both_sides() -> None:
    fn, args = attention()
    cut = foretrace.capture(fn, args).cut("joint", loss=0, keep=["scaled_dot_product_attention"])
    forward = cut.explain("scaled_dot_product_attention")
    assert kinds(forward.links) == ["line", "written", "whole"]
    assert the("whole", forward.links).notes[0] == "keep= names it"
    backward = cut.explain("scaled_dot_product_attention_backward")
    assert the("because", backward.links).facts["node"] == "scaled_dot_product_attention"
    assert "MmBackward0" in the("rule", backward.links).facts["rules"]
    inner = cut.explain("scaled_dot_product_attention_backward.mm")
    assert kinds(inner.links) == ["leaf", "inside", "rule", "because"]
    assert the("rule", inner.links).text == "MmBackward0"


def test_saved_values_of_a_kept_op_say_so() -> None:
    fn, args = attention()
    cut = foretrace.capture(fn, args).cut("joint", loss=0, keep=["scaled_dot_product_attention"])
    parts = [the("part", cut.explain(name).links) for name in ("getitem", "getitem_1")]
    assert "saved" not in parts[0].facts
    assert parts[1].facts["saved"]


def test_the_export_cut_says_why_ops_are_whole() -> None:
    cut = foretrace.capture(Normed(), (wants(5, 4),)).cut("export")
    assert "export" in the("whole", cut.explain("linear").links).notes[0]


def test_a_part_of_a_result() -> None:
    cut = foretrace.capture(split, (wants(4, 2),)).cut("aten")
    found = cut.explain("getitem_1")
    assert found.links[0].facts["index"] == 1
    assert the("written", found.links).facts["op"] == "aten.chunk.default"


# ------------------------------------------------------------------------------ inputs and outputs


def test_inputs_and_outputs_have_roles() -> None:
    cut = foretrace.capture(Normed(), (wants(5, 4),)).cut("joint", loss=0)
    first = cut.graph_module.graph.find_nodes(op="placeholder")[0]
    assert cut.explain(first.name).links[0].facts["role"] == {
        "kind": "parameter",
        "name": "linear.weight",
    }
    roles = [link.facts["role"] for link in cut.explain("output").links]
    assert {"kind": "gradient", "name": "linear.weight"} in roles
    assert {"kind": "mutation", "name": "norm.running_mean"} in roles


def test_a_gradient_that_is_none_says_why() -> None:
    def unused(x: Tensor, y: Tensor) -> Tensor:
        return x.sum()

    cut = foretrace.capture(unused, (wants(3), wants(3))).cut("joint", loss=0)
    (none,) = [link for link in cut.explain("output").links if link.facts["node"] is None]
    assert none.facts["role"]["name"] == "y"
    assert none.notes


def test_sizes() -> None:
    cut = foretrace.capture(reshaped, (wants(3, 4),), dynamic_shapes=True).cut("joint", loss=0)
    complete(cut)
    sizes = [e for e in explained(cut).values() if e.side == "size"]
    assert sizes
    assert any("dimension 0 of x" in e.links[0].text for e in sizes)
    assert any("computed from" in e.links[0].text for e in sizes)


def test_an_unknown_node_is_refused_with_the_names_near_it() -> None:
    cut = foretrace.capture(Normed(), (wants(5, 4),)).cut("joint", loss=0)
    with pytest.raises(foretrace.Refusal) as caught:
        cut.explain("adddmm")
    assert caught.value.kind == "unknown node"
    assert "addmm" in caught.value.do[0]


def test_a_node_without_an_inside_is_refused() -> None:
    cut = foretrace.capture(Normed(), (wants(5, 4),)).cut("joint", loss=0)
    with pytest.raises(foretrace.Refusal, match="has no nodes inside"):
        cut.explain("addmm.mm")


# ---------------------------------------------------------------------- a missing link is no blank


def test_a_missing_link_is_told() -> None:
    cut = foretrace.capture(Normed(), (wants(5, 4),)).cut("aten")
    cut.program.recorded.ops.clear()
    found = cut.explain("addmm")
    assert found.missing == ("aten.addmm.default -> f32[5, 6] is not in the tree",)
    assert "MISSING: aten.addmm.default" in str(found)
    assert found.to_dict()["missing"] == list(found.missing)


# ------------------------------------------------------------------------------------- the halves


def test_a_saved_value_says_what_it_takes_and_why() -> None:
    forward, backward = foretrace.capture(Normed(), (wants(5, 4),)).pair(policy="save_all")
    name, saved = next(
        (output.role.name, item)
        for output, item in zip(forward.graph.outputs[-len(forward.saved) :], forward.saved,
                                strict=True)
        if not item.free
    )  # fmt: skip
    taken = backward.explain(name)
    assert taken.side == "input"
    assert f"{saved.bytes} bytes" in str(taken)
    assert saved.reason in str(taken)
    assert kinds(taken.links[0].path)[0] == "line"
    assert "saved" in kinds(forward.explain(name).links)


def test_an_op_that_runs_again_says_so() -> None:
    _, backward = foretrace.capture(Normed(), (wants(5, 4),)).pair(policy="recompute_all")
    again = [node for node in backward.nodes if "again" in kinds(backward.explain(node).links)]
    assert again
    assert all(backward.explain(node).side == "forward" for node in again)


def test_a_backward_node_names_the_forward_half_s() -> None:
    forward, backward = foretrace.capture(Normed(), (wants(5, 4),)).pair(policy="save_all")
    facts = [
        link.facts["forward"]
        for node in backward.nodes
        for link in backward.explain(node).links
        if link.kind == "because" and link.facts.get("forward")
    ]
    assert facts
    assert set(facts) <= set(forward.nodes)


def test_a_node_in_a_program_that_an_op_holds() -> None:
    """It is told which op holds it, and under which name; so is its derivative."""
    given = CASES["attention_with_scores_changed"].subject()
    joint = foretrace.capture(given.fn, given.args, given.kwargs).cut("joint")
    forward = str(joint.explain("sdpa_score_0.mul"))
    assert "flex_attention holds it, in sdpa_score\n" in forward
    assert "in sdpa_mask" not in forward
    backward = joint.explain("joint_graph_0.zeros_and_scatter")
    assert kinds(backward.links)[:3] == ["leaf", "inside", "rule"]
    assert "ModIndex.backward" in str(backward)
