"""The state of a run is whole when it is made: its parts are set by their own methods alone."""

import ast
from collections.abc import Iterator

import pytest

from tests.house.test_house import PACKAGE, Source, read

PARTS = frozenset({
    "recorder", "builder", "tape", "scope", "aliasing", "autograd", "forward", "failures", "casts",
    "answers", "queries", "ft_queries", "sources", "capture", "session", "steps", "outside",
})  # fmt: skip
"""What code calls a recorder, a session and what they are made of"""
RUN = "run"
"""What it calls a session where sessions are made; elsewhere other things are called so"""
MAKES_RUNS = ("foretrace/session/run/setup.py", "foretrace/frontends/")
AT_EACH_OP = frozenset({("foretrace/session/run/session_parts.py", "outside.resting")})
"""To call a method there would take a tenth of a microsecond at each op"""
SAY = "a method of its class, or an argument of its constructor"


def part_of(node: ast.expr) -> str:
    """The last name of `a.b`, without the underscore of what is private."""
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name.lstrip("_")


def set_from_outside(source: Source) -> Iterator[tuple[int, str]]:
    """Attributes of a part that code outside of the part's own class sets."""
    runs = str(source.path).startswith(MAKES_RUNS)
    parts = PARTS | {RUN} if runs else PARTS
    for node in source.nodes:
        stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del)
        if stored and part_of(node.value) in parts:
            if (str(source.path), ast.unparse(node)) not in AT_EACH_OP:
                yield node.lineno, f"sets {ast.unparse(node)}: let it be {SAY}"
        elif isinstance(node, ast.Call) and part_of(node.func) in ("setattr", "vars"):
            torchs_own = ast.unparse(node.args[0]).startswith("torch.")
            if part_of(node.args[0]) in parts and not torchs_own:
                yield node.lineno, f"{ast.unparse(node)}: let it be {SAY}"


def test_no_part_is_set_from_outside() -> None:
    found = [
        f"{path}:{line}: {what}" for path in PACKAGE for line, what in set_from_outside(read(path))
    ]
    assert not found, "\n".join(found)


BAD = [
    "recorder.number = questions.number",
    "self.recorder.module = call",
    "self._recorder.scope.depth += 1",
    "scope.ops, scope.module = around",
    "queries.switch: object = leaves.switch",
    "for recorder.module in calls: pass",
    "with opened() as recorder.saving: pass",
    "setattr(self.recorder, 'saving', None)",
    "switched(vars(recorder), saving=None)",
    "del recorder.aliasing.functional_form",
]
GOOD = [
    "self.scope = Scope()",
    "recorder.scope.set_module(call)",
    "recorder.aliasing.overwritten[value] = held",
    "found = recorder.scope.module",
]


@pytest.mark.parametrize("text", BAD)
def test_it_is_found(text: str) -> None:
    assert list(set_from_outside(Source("foretrace/tracer/recorder/bad.py", text)))


@pytest.mark.parametrize("text", GOOD)
def test_nothing_else_is(text: str) -> None:
    assert not list(set_from_outside(Source("foretrace/tracer/recorder/good.py", text)))


def test_a_session_is_called_run_where_it_is_made() -> None:
    text = "run.together = True"
    assert list(set_from_outside(Source("foretrace/session/run/setup.py", text)))
    assert not list(set_from_outside(Source("foretrace/tracer/higher_order/operands.py", text)))
