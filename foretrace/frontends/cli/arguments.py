"""The parser of the command line."""

import argparse
import difflib
import platform
import sys
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any, NoReturn, TypeAlias

from foretrace.errors import Attempt, Refusal

Options: TypeAlias = argparse.Namespace
CUTS = ("export", "aten", "step", "joint", "forward", "backward")
POLICIES = ("min_cut", "save_all", "recompute_all")
AUTO = "auto"

PROGRAM = (
    "file.py[:name] or package.module:name, a function that returns (callable, args) or"
    " (callable, args, kwargs); without a name it is `program`; or file.ft, which save() wrote"
)
LOSS = (
    "which output the joint, forward and backward cuts differentiate; `none`: the gradients of all"
    " outputs are inputs; default: 0 if output 0 is a scalar that requires grad, else none"
)
MODES = "no_grad, inference, autocast, torch_dispatch, fake, functionalize, vmap, python_dispatcher"
FACTS: dict[str, str] = {
    "doctor": "print versions, build and switches: what an issue report needs",
}
BREAK = (
    "capture again under pdb and stop at a step, as the rows of `break` call them: line (default),"
    " recorded, types, meta, opened, choice, rule, backward, ..."
)
PASSES = (
    "print what each pass of the cut changed, in the place of its graph: how many ops it added,"
    " removed and replaced, and their lines"
)
BACKEND = (
    "instead: both halves as a backend of torch's, or module:function, compiles them; where"
    " one is off, the first node that differs"
)
ON_TARGET = (
    "instead: each node's kernel on this target, which need not be there, and its types on meta;"
    " of a file, or of the program captured for it"
)
SCRIPTS = "with --backend: where to write a script and its inputs for each half that is off"
LEVEL = "core: torch's core ATen set, all else opened by torch's decompositions"
POLICY = "what a forward cut saves for the backward one; default: min_cut, the fewest bytes"
DTYPES = ("f16", "bf16", "f32", "f64")
SIDE_OPTIONS = (
    "train", "eval", "dynamic", *DTYPES, "keep=OP", "open=OP", "policy=P", "loss=N",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SideAsked:
    """The cut of `--left` or `--right`."""

    cut: str
    target: str | None = None
    mode: str | None = None
    dtype: str | None = None
    dynamic: bool = False
    keep: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    policy: str = POLICIES[0]
    loss: int | str | None = AUTO
    level: str | None = None

    @property
    def captured(self) -> tuple[object, ...]:
        """The options of the capture; sides with equal ones share it."""
        return (self.target, self.mode, self.dtype, self.dynamic)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are refusals."""

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments."""
        usage = " ".join(self.format_usage().split()).removeprefix("usage: ")
        raise Refusal(message, kind="wrong use", do=(f"use  {usage}", f"see  {self.prog} --help"))


class Version(argparse.Action):
    """`--version`: prints the versions of foretrace, torch and Python, and exits with 0."""

    def __call__(
        self, whole: argparse.ArgumentParser, options: Options, values: Any, flag: str | None = None
    ) -> NoReturn:
        """Print them without an import of torch."""
        packages = [f"{name} {version_of(name)}" for name in ("foretrace", "torch")]
        sys.stdout.write(f"{', '.join(packages)}, Python {platform.python_version()}\n")
        whole.exit()


def version_of(package: str) -> str:
    """The installed version of a package, or "not installed"."""
    with Attempt(metadata.PackageNotFoundError) as attempt:
        found = metadata.version(package)
    return "not installed" if attempt.error is not None else found


def parser() -> Parser:
    """The commands and their options."""
    whole = Parser(prog="foretrace", description="Graphs of a PyTorch program, and why.")
    versions = "print the versions of foretrace, torch and Python"
    whole.add_argument("--version", action=Version, nargs=0, help=versions)
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _show(commands)
    _ops(commands)
    _explain(commands)
    _diff(commands)
    _check(commands)
    _dispatch(commands)
    _targets(commands)
    for name, text in FACTS.items():
        _json(commands.add_parser(name, help=text, description=f"{text.capitalize()}."))
    return whole


def _show(commands: Any) -> None:
    show = commands.add_parser("show", help="print a cut", description="Print a cut of a program.")
    show.add_argument("program", metavar="PROGRAM", help=PROGRAM)
    show.add_argument("--passes", action="store_true", help=PASSES)
    _cut_options(show, "export")


def _ops(commands: Any) -> None:
    text = "Print the operators of a cut with counts and tags, and which have no core form."
    ops = commands.add_parser("ops", help="count the operators of a cut", description=text)
    ops.add_argument("program", metavar="PROGRAM", help=PROGRAM)
    _cut_options(ops, "joint")


def _explain(commands: Any) -> None:
    text = "Print a node's path in the tree: your line, the op as written, each level below."
    explain = commands.add_parser("explain", help="say why a node is there", description=text)
    explain.add_argument("program", metavar="PROGRAM", help=PROGRAM)
    explain.add_argument("node", metavar="NODE", help="a node's name, as `show` prints it")
    explain.add_argument(
        "--break", dest="stop", metavar="STEP", nargs="?", const="line", help=BREAK
    )
    explain.add_argument(
        "--stop-at", nargs=4, metavar=("FILE", "LINE", "IF", "N"), help=argparse.SUPPRESS
    )
    _cut_options(explain, "joint")


def _diff(commands: Any) -> None:
    text = (
        "Say where two cuts differ, aligned on the tree of the program, each difference with its"
        " reason. A SIDE is CUT[@TARGET][,OPTION...]: `joint@cuda:sm90`, `joint,eval`,"
        f" `forward,policy=save_all`. Options: {', '.join(SIDE_OPTIONS)}."
    )
    diff = commands.add_parser("diff", help="say where two cuts differ, and why", description=text)
    add = diff.add_argument
    add("program", metavar="PROGRAM", help=PROGRAM)
    add("other", metavar="OTHER", nargs="?", help="the program of the right cut; default: the same")
    add("--left", metavar="SIDE", type=side, help="the left cut; default: export, or --cut")
    add("--right", metavar="SIDE", type=side, help="the right cut; default: joint, or --cut")
    add("--cut", choices=CUTS, help="which graph of both; default with OTHER: export")
    add("--node", metavar="NODE", help="only what a node of either cut is in")
    add("--run", action="store_true", help="run both on one input: the first that differs in value")
    add("--all", action="store_true", help="print every kind of difference, not the first of each")
    _json(diff)


def _check(commands: Any) -> None:
    text = (
        "Run eager, each cut, the pair and the compiled callable; count what is bitwise equal."
        " Each stage is held against docs/stages.md, too."
    )
    check = commands.add_parser("check", help="hold a capture against eager", description=text)
    check.add_argument("programs", metavar="PROGRAM", nargs="+", help=PROGRAM)
    modes = check.add_mutually_exclusive_group()
    for mode in ("train", "eval"):
        modes.add_argument(
            f"--{mode}",
            dest="modes",
            action="store_const",
            const=(mode,),
            default=("train", "eval"),
            help=f"after {mode}() only; default: both",
        )
    other = check.add_mutually_exclusive_group()
    other.add_argument(
        "--partial",
        action="store_true",
        help="in pieces: what runs as Python and why, and how much is captured around it",
    )
    other.add_argument("--target", metavar="T", help=ON_TARGET)
    other.add_argument("--backend", metavar="NAME", help=BACKEND)
    check.add_argument("--scripts", metavar="FOLDER", help=SCRIPTS)
    _json(check)


def _dispatch(commands: Any) -> None:
    text = (
        "Of an operator: the key set of a call, the order in which the keys are asked, and what"
        " serves each. Of a program: every kernel that it runs, in the look of torch's debug trace."
    )
    add = commands.add_parser(
        "dispatch", help="say how torch's dispatcher answers", description=text
    ).add_argument
    add("what", metavar="OP|PROGRAM", help=f"aten::mul.Tensor, rms_norm, ...; or {PROGRAM}")
    add("--on", metavar="D,...", help="OP: where its operands are; default: cpu")
    add("--requires-grad", action="store_true", help="OP: an operand requires grad")
    add("--mode", metavar="M", action="append", default=[], help=f"OP: around it: {MODES}")
    add("--key", metavar="K", help="OP: what serves this key alone")
    add("--backward", action="store_true", help="PROGRAM: and its backward")
    add("--json", action="store_true", help="print JSON, for programs")


def _targets(commands: Any) -> None:
    text = (
        "List the devices to capture for, what is known of each, and from where. `add FILE.json`"
        " adds one of your own, `diff TARGET TARGET` prints what two decide differently."
    )
    help_ = "list the devices to capture for, add one, or compare two"
    targets = commands.add_parser("targets", help=help_, description=text)
    targets.add_argument("what", metavar="add|diff", nargs="?", help="default: list them")
    targets.add_argument("names", metavar="NAME", nargs="*", help="a target file; two targets")
    _json(targets)


def _cut_options(command: Any, cut: str) -> None:
    add = command.add_argument
    add("--cut", choices=CUTS, default=cut, help=f"which graph; default: {cut}")
    add("--target", metavar="T", help="the device to capture for; default: that of the inputs")
    add("--keep", metavar="OP", action="append", default=[], help="leave this op whole")
    add("--open", metavar="OP", action="append", default=[], help="take this op apart")
    add("--dynamic", action="store_true", help="leave every input size open")
    add("--eval", action="store_true", help="call eval() first; default: as the program is")
    add("--policy", choices=POLICIES, default=POLICIES[0], help=POLICY)
    add("--level", metavar="L", help=LEVEL)
    add("--loss", metavar="N", type=loss, default=AUTO, help=LOSS)
    _json(command)


def _json(command: Any) -> None:
    command.add_argument("--json", action="store_true", help="print JSON, for programs")


def loss(text: str) -> int | str | None:
    """An index, None for "none", or AUTO."""
    if text in ("none", AUTO):
        return AUTO if text == AUTO else None
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither an index nor `none`")
    return int(text)


def side(text: str) -> SideAsked:
    """The cut of a side such as `joint@cuda:sm90,eval`."""
    first, *options = text.split(",")
    cut, _, target = first.partition("@")
    if cut not in CUTS:
        near = difflib.get_close_matches(cut, CUTS, 1)
        hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(CUTS)}"
        raise argparse.ArgumentTypeError(f"there is no cut {cut!r}: {hint}")
    found = SideAsked(cut, target or None)
    for option in options:
        found = _with_option(found, option)
    return found


def _with_option(found: SideAsked, option: str) -> SideAsked:
    name, _, value = option.partition("=")
    if option in ("train", "eval"):
        return replace(found, mode=option)
    if option in DTYPES:
        return replace(found, dtype=option)
    if option == "dynamic":
        return replace(found, dynamic=True)
    if name == "keep" and value:
        return replace(found, keep=(*found.keep, value))
    if name == "open" and value:
        return replace(found, open=(*found.open, value))
    if name == "policy" and value in POLICIES:
        return replace(found, policy=value)
    if name == "loss" and value:
        return replace(found, loss=loss(value))
    raise argparse.ArgumentTypeError(
        f"there is no option {option!r}: use {', '.join(SIDE_OPTIONS)}"
    )
