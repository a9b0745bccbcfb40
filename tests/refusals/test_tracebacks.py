"""What a user sees of a refusal: the lines of the user's, and the rest where it is asked for."""

import copy
import pdb  # noqa: T100 - that a debugger finds its way is what is tested
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from foretrace.errors import PACKAGE_DIR
from tests.support import verified

X = torch.randn(4, 8)


class Asks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return self.deep(x)

    def deep(self, x: Tensor) -> Tensor:
        return torch.tensor(x.numpy())


class Raises(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x @ x


def nested(x: Tensor) -> Any:
    return foretrace.compile(Asks(), fullgraph=True)(x)


PROGRAM = foretrace.capture(nn.Linear(8, 8), (X,))
ALL_BUT_CAPTURES: dict[str, Callable[[Path], Any]] = {
    "cut": lambda path: PROGRAM.cut("none"),
    "half": lambda path: PROGRAM.cut("forward", loss=0),
    "pair": lambda path: PROGRAM.pair(loss=0),
    "parts": lambda path: PROGRAM.parts(),
    "call": lambda path: PROGRAM.cut("export")(X[1:]),
    "joint call": lambda path: PROGRAM.cut("joint")(X[1:]),
    "explain": lambda path: PROGRAM.cut("export").explain("none"),
    "compiled": lambda path: PROGRAM.compile()(X[1:]),
    "save": lambda path: PROGRAM.save(path / "none" / "a.ft"),
    "load": lambda path: foretrace.load(path / "none.ft"),
    "dispatch": lambda path: foretrace.dispatch("aten::none"),
    "rule": lambda path: foretrace.rule(torch.ops.aten.mul, backward=None),  # type: ignore[arg-type]
    "region": lambda path: foretrace.region(3),  # type: ignore[type-var]
    "compile": lambda path: foretrace.compile(3),  # type: ignore[arg-type]
    "aot_autograd": lambda path: foretrace.aot_autograd(fw_compiler=3),  # type: ignore[arg-type]
}
CAPTURES: dict[str, Callable[[nn.Module], Any]] = {
    "capture": lambda net: foretrace.capture(net, (X,)),
    "old name": lambda net: foretrace.capture(net, (X,), dynamic_shapes=True),
    "export": lambda net: foretrace.export(net, (X,)),
    "aot_export_module": lambda net: foretrace.aot_export_module(net, (X,), trace_joint=False),
    "compiled module": lambda net: foretrace.compile(net, fullgraph=True)(X),
    "compiled function": lambda net: foretrace.compile(lambda x: net(x) * 2, fullgraph=True)(X),
    "trace": lambda net: foretrace.dispatch_trace(net, X),
}


def refused(call: Callable[..., Any], *args: Any) -> foretrace.Refusal:
    with pytest.raises(foretrace.Refusal) as caught:
        call(*args)
    return caught.value


def frames(error: BaseException) -> list[traceback.FrameSummary]:
    """All but those of the functions by which the tests verify each stage."""
    found = traceback.extract_tb(error.__traceback__)
    return [frame for frame in found if frame.filename != verified.__file__]


def files(error: BaseException) -> list[str]:
    return [frame.filename for frame in frames(error)]


def functions(error: BaseException) -> list[str]:
    return [frame.name for frame in frames(error)]


@pytest.mark.parametrize("name", ALL_BUT_CAPTURES)
def test_a_wrong_call_is_shown_at_the_call(name: str, tmp_path: Path) -> None:
    error = refused(ALL_BUT_CAPTURES[name], tmp_path)
    assert set(files(error)) == {__file__}
    assert functions(error)[-1] == "<lambda>"
    whole = files(error.with_full_traceback())
    assert whole[-1].startswith(PACKAGE_DIR)


@pytest.mark.parametrize("name", CAPTURES)
def test_a_program_is_shown_with_its_own_lines(name: str) -> None:
    if name != "trace":  # which runs it as eager does
        error = refused(CAPTURES[name], Asks())
        assert set(files(error)) == {__file__}
        assert functions(error)[-2:] == ["forward", "deep"]
        whole = error.with_full_traceback()
        assert len(files(whole)) > 8
        assert files(whole)[-1].startswith(PACKAGE_DIR)
        assert [name for name in functions(whole) if name in ("forward", "deep")] == [
            "forward", "deep",
        ]  # fmt: skip


@pytest.mark.parametrize("name", [name for name in CAPTURES if "compiled" not in name])
def test_what_it_was_raised_from_is_shown_likewise(name: str) -> None:
    error = refused(CAPTURES[name], Raises())
    cause = error.__cause__
    if name == "export":  # it was raised from a refusal, which has the same words
        assert cause is None
        return
    assert type(cause) is RuntimeError
    assert set(files(error)) | set(files(cause)) == {__file__}
    assert functions(cause)[-1] == "forward"
    text = "".join(traceback.format_exception(error))
    assert len(text.splitlines()) < 32
    error.with_full_traceback()
    assert len(files(cause)) > len({__file__}) + (name != "trace") * 8


def test_a_compiled_module_in_a_program() -> None:
    error = refused(lambda: foretrace.capture(nested, (X,)))
    assert set(files(error)) == {__file__}
    assert functions(error)[-3:] == ["nested", "forward", "deep"]
    whole = files(error.with_full_traceback())
    assert [at for at in whole if at == __file__] == [__file__] * 5
    assert len(whole) > 15


def test_all_of_it_is_as_it_was() -> None:
    """In the order in which the frames were left, none twice; and once more."""
    error = refused(CAPTURES["capture"], Asks())
    short = functions(error)
    whole = functions(error.with_full_traceback())
    assert functions(error.with_full_traceback()) == whole
    rest = iter(whole)
    assert all(name in rest for name in short)

    def again() -> None:
        raise error

    again_short = refused(again)
    assert functions(again_short)[-len(whole) :] == whole


def test_a_debugger_finds_the_line() -> None:
    error = refused(CAPTURES["capture"], Asks())
    stack, _ = pdb.Pdb().get_stack(None, error.__traceback__)
    assert stack[-1][0].f_code is Asks.deep.__code__
    assert set(stack[-1][0].f_locals) == {"self", "x"}


def test_a_refusal_is_copied_without_its_frames() -> None:
    error = refused(CAPTURES["capture"], Asks())
    for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):  # noqa: S301 - our own
        assert str(other) == str(error)
        assert other.with_full_traceback().__traceback__ is None


def test_it_prints_as_it_reads() -> None:
    error = refused(CAPTURES["capture"], Asks())
    assert repr(error) == str(error)
    assert "do    " in repr(error)
