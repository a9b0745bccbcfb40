"""`python -m tests.databases.on_targets`: torch's operators, captured for a device not here.

Each sample is captured for the target, forward and joint. Each node of a graph is held against the
target's kernels, and its types against those of torch's own fake kernel for that device.
"""

import argparse
import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import fx
from torch.utils import _pytree as pytree

import foretrace
from foretrace.inspect.dispatcher.on_target import NONE, nodes_there
from tests.databases.attempts import failure, warm
from tests.databases.children import Ended, Record, run
from tests.databases.databases import cases
from tests.databases.sample import Case, Sample
from tests.support.accelerator import npu

CUTS: Final = ("aten", "joint")
FAULTS: Final = frozenset({"raw", "abort", "broken", "timeout", "no kernel"})


def records(case: Case, target: str, most: int | None) -> Iterator[Record]:
    """Every sample of a case, forward and joint, a record each."""
    for sample in case.samples(most):
        yield from ({"sample": sample.label, **each} for each in _sample(sample, target))


def _sample(sample: Sample, target: str) -> Iterator[Record]:
    try:
        subject = sample.fresh()
        program = foretrace.capture(subject.fn, subject.args, subject.kwargs, target=target)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is counted
        yield {"cut": "capture", **_failed(sample, error)}
        return
    for kind in CUTS:
        if kind == "joint" and not _trained(sample):
            continue
        try:
            yield {"cut": kind, **_judged(program, kind)}
        except Exception as error:  # noqa: BLE001 - as above
            yield {"cut": kind, **_failed(sample, error, kind)}


def _trained(sample: Sample) -> bool:
    """Whether eager has a gradient of it, here."""
    subject = sample.fresh()
    outputs = pytree.tree_leaves(subject.fn(*subject.args, **subject.kwargs))
    return any(isinstance(out, torch.Tensor) and out.requires_grad for out in outputs)


def _failed(sample: Sample, error: Exception, kind: str = "") -> Record:
    """How it failed; of a refusal, whether the CPU is refused, too."""
    found = failure(error, kind or "capture")
    if found["status"] == "raw":
        return found
    subject = sample.fresh()
    try:
        program = foretrace.capture(subject.fn, subject.args, subject.kwargs)
        if kind:
            program.cut(kind)
    except Exception:  # noqa: BLE001 - as above
        return {**found, "status": "refused here, too"}
    return found


def _judged(program: foretrace.Program, kind: str) -> Record:
    graph = program.cut(kind).graph_module
    nodes = list(nodes_there(graph, program.target, program.semantics.symbols.hint))
    missing = sorted({f"{each.op} ({each.key})" for each in nodes if each.kernel == NONE})
    if missing:
        return {"status": "no kernel", "what": "; ".join(missing)}
    unlike, unknown = set[str](), set[str]()
    for node in graph.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and _tensors(node.meta["val"]):
            found, known = _typed(node), _forms(node.meta["val"])
            if isinstance(found, str):
                unknown.add(f"{node.target}: {found}")
            elif found != known:
                unlike.add(f"{node.target}: {known}, fake {found}")
    if unlike:
        return {"status": "differs", "what": "; ".join(sorted(unlike))}
    more = {"what": "; ".join(sorted(unknown))} if unknown else {}
    return {"status": "not all compared" if unknown else "same", **more}


def _typed(node: fx.Node) -> list[str] | str:
    """What torch's fake kernel gives for the device; where that asks for one, as on `meta`.

    Returns:
        The types; or why there is none: data decides them, or no kernel is there.
    """
    with _mode_of(node), torch.no_grad():
        try:
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
            return _forms(node.target(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - whatever torch raises there
            if "not linked" not in str(error) and "not compiled" not in str(error):
                return type(error).__name__
    call = pytree.tree_map_only(torch.Tensor, _on_meta, (args, kwargs))
    try:
        found = node.target(*call[0], **call[1])
    except Exception as error:  # noqa: BLE001 - as above
        return type(error).__name__
    there = _tensors(node.meta["val"])[0].device.type
    return [form.replace("on meta", f"on {there}") for form in _forms(found)]


def _mode_of(node: fx.Node) -> Any:
    """The mode that the types of a node are of."""
    return _tensors(node.meta["val"])[0].fake_mode


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    size, stride = tensor.shape, tensor.stride()
    return torch.empty_strided(size, stride, dtype=tensor.dtype, device="meta")


def _forms(tree: Any) -> list[str]:
    return list(map(_form, _tensors(tree)))


def _tensors(tree: Any) -> list[Any]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _form(tensor: torch.Tensor) -> str:
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    kind = str(tensor.dtype).removeprefix("torch.")
    sizes, steps = ([_size(each) for each in numbers] for numbers in (tensor.shape, strides))
    return f"{kind}{sizes}{steps} on {tensor.device.type}"


def _size(number: Any) -> object:
    """A size, or that data decides it."""
    return number if isinstance(number, int) or number.node.has_hint() else "of data"


def shown(found: Iterable[tuple[str, Record]]) -> Table:
    """How many samples of each status, by cut."""
    counts = defaultdict[str, Counter[str]](Counter)
    for _, record in found:
        counts[record["cut"]][record["status"]] += 1
    statuses = sorted({status for each in counts.values() for status in each})
    table = Table("cut", *statuses)
    for kind, each in counts.items():
        table.add_row(kind, *(str(each[status] or "") for status in statuses))
    return table


def main() -> int:
    """Run and show; the exit code says whether a child aborted, or anything was raw."""
    parser = argparse.ArgumentParser(prog="python -m tests.databases.on_targets")
    parser.add_argument("--target", default="cuda:sm90", help="or npu, of a file")
    parser.add_argument("--database", default="opinfo.float32")
    parser.add_argument("--only", default="", help="a regular expression on the operator's name")
    parser.add_argument("--samples", default="1", help="at most so many of each, or all")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, help="records, one operator a line")
    options = parser.parse_args()
    most = None if options.samples == "all" else int(options.samples)
    chosen = cases([options.database], options.only)
    with tempfile.TemporaryDirectory() as folder:
        target = target_in(Path(folder), options.target)
        warm()
        jobs = [(case.name, partial(records, case, target, most)) for case in chosen]
        found = list[tuple[str, Record]]()
        for ended in track(run(jobs, limit=600, workers=options.jobs), total=len(jobs)):
            found += results_of(ended)
            if options.out:
                with options.out.open("a") as out:
                    print(json.dumps(vars(ended)), file=out)
    Console().print(shown(found))
    return int(any(record["status"] in FAULTS for _, record in found))


def target_in(folder: Path, name: str) -> str:
    """A target by its name; "npu" is a user's own, of a file in the folder."""
    if name != "npu":
        return name
    file = folder / "npu.json"
    file.write_text(json.dumps(npu()))
    foretrace.capture(torch.sin, (torch.ones(2),), target=str(file))  # a process reads a file once
    return str(file)


def results_of(ended: Ended) -> Iterator[tuple[str, Record]]:
    """The records of an operator, and one more of a child that did not end well."""
    yield from ((ended.name, record) for record in ended.records)
    if ended.end != "ok":
        yield ended.name, {"cut": "-", "status": ended.end, "what": ended.said}


if __name__ == "__main__":
    raise SystemExit(main())
