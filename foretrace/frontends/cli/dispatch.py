"""`foretrace dispatch`: how torch's dispatcher answers an operator's call, or a whole program."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from rich.text import Text

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.frontends.cli.arguments import Options
from foretrace.frontends.cli.load import UserProgram, user_program
from foretrace.frontends.cli.render import Screen
from foretrace.inspect.dispatcher.dispatch import dispatch
from foretrace.inspect.dispatcher.dispatch_trace import dispatch_trace
from foretrace.inspect.dispatcher.kernel_trace import DispatchTrace, ProgramRaised
from foretrace.inspect.dispatcher.resolution import LABEL, Dispatch

PROGRAM = re.compile(r".*\.py(:\w*)?|[\w.]+:\w+")
OF_AN_OP = ("on", "requires_grad", "mode", "key")


def run(options: Options, screen: Screen) -> int:
    """Print the answers for an operator on each device, or the kernels of a program."""
    if PROGRAM.fullmatch(options.what):
        _of_program(options, screen)
    else:
        _of_operator(options, screen)
    return 0


# ---- an operator --------------------------------------------------------------------------------


def _of_operator(options: Options, screen: Screen) -> None:
    if options.backward:
        raise _wrong("--backward", "an operator", "ask with --requires-grad")
    answers = [
        dispatch(
            options.what,
            device=device,
            requires_grad=options.requires_grad,
            mode=options.mode,
            key=options.key,
        )
        for device in (options.on or "cpu").split(",")
    ]
    if screen.json:
        screen.data([each.to_dict() for each in answers])
        return
    for number, each in enumerate(answers):
        if number:
            screen.line()
        _print(each, screen)


def _print(answer: Dispatch, screen: Screen) -> None:
    screen.line(answer.head, "bold")
    before = None
    for label, text in answer.rows():
        shown = Text(f"  {'' if label == before else label:<{LABEL}}  ", "cyan")
        before = label or before
        screen.indented(shown, Text(text, "dim" if label == "not asked" else ""), len(shown))


# ---- a program ----------------------------------------------------------------------------------


def _of_program(options: Options, screen: Screen) -> None:
    for name in OF_AN_OP:
        if getattr(options, name):
            flag = f"--{name.replace('_', '-')}"
            raise _wrong(flag, "a program", "a program runs as it is, where its tensors are")
    try:
        trace = _trace(options, screen)
    except ProgramRaised as refusal:
        if not screen.json:
            _lines(refusal.trace.lines(), screen)
        raise
    if screen.json:
        screen.data({"program": options.what, **trace.to_dict()})
        return
    _lines(trace.lines(), screen)
    screen.line()
    screen.line(_summary(trace), "bold")


def _trace(options: Options, screen: Screen) -> DispatchTrace:
    with screen.busy(f"loading {options.what}") as now, user_program(options.what) as user:
        now(f"running {options.what}")
        return dispatch_trace(_step(user, backward=options.backward))


def _step(user: UserProgram, *, backward: bool) -> Callable[[], Any]:
    """The program, and its backward: of the first output that is a scalar, else of all."""
    if not backward:
        return lambda: user.fn(*user.args, **user.kwargs)

    def step() -> Any:
        result = user.fn(*user.args, **user.kwargs)
        tensors = [each for each in torch_api.tree_leaves(result) if torch.is_tensor(each)]
        trained = [each for each in tensors if each.requires_grad]
        losses = [each for each in trained if each.numel() == 1][:1]
        if not trained:
            raise Refusal("no output requires grad", kind="no loss", do="leave --backward out")
        ones = [torch.ones_like(each) for each in trained]
        torch.autograd.backward(losses or trained, None if losses else ones)
        return result

    return step


def _lines(lines: Iterable[str], screen: Screen) -> None:
    for line in lines:
        screen.line(line, "cyan" if line.startswith("#") else "")


def _summary(trace: DispatchTrace) -> str:
    rows = trace.rows
    calls = sum(row.how == "call" for row in rows)
    names = len({row.op for row in rows})
    return f"{len(rows)} kernels ran, of {names} operators: {calls} calls, the rest handed on"


def _wrong(flag: str, of: str, do: str) -> Refusal:
    return Refusal(f"{flag} says nothing of {of}", kind="wrong use", do=do)
