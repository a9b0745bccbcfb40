"""Every refusal names a line and its ways out, and every place that refuses has a program."""

import ast
import sys
from pathlib import Path
from typing import Any

import pytest

import foretrace
from tests.refusals import CASES, EXCUSED, Case
from tests.support.refusing import check

PACKAGE = Path(foretrace.__file__).parent
# torch 2.15 warns of it once, in a kernel without numbers, too


def sites() -> set[str]:
    """`file:function` of every refusal that is made in the package."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        tree = ast.parse(text if "Refusal" in text else "")
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Refusal":
                around = [f for f in functions if f.lineno <= node.lineno <= (f.end_lineno or 0)]
                name = max(around, key=lambda function: function.lineno).name
                found.add(f"{path.relative_to(PACKAGE).as_posix()}:{name}")
    return found


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each refusal knows which function made it; a copy knows, too."""
    original = foretrace.Refusal.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        code = sys._getframe(1).f_code
        path = Path(code.co_filename)
        if path.is_relative_to(PACKAGE):
            self.made_in = f"{path.relative_to(PACKAGE).as_posix()}:{code.co_name}"
        original(self, *args, **kwargs)

    monkeypatch.setattr(foretrace.Refusal, "__init__", init)


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
@pytest.mark.usefixtures("places")
def test_line_and_ways(case: Case) -> None:
    with pytest.raises(foretrace.Refusal) as caught:
        case.ask()
    refusal: Any = caught.value
    assert (refusal.kind, refusal.made_in) == (case.kind, case.site), str(refusal)
    assert refusal.at is not None, str(refusal)
    check(refusal, at=case.at)
    assert len(case.ways) == len(refusal.do) > 0, str(refusal)


def test_every_place_has_a_program_or_a_reason() -> None:
    known, there = {case.site for case in CASES.values()} | EXCUSED.keys(), sites()
    assert sorted(there - known) == []
    assert sorted(known - there) == [], "no place refuses there any more"
