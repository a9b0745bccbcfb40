"""A file that is damaged, of another version, or written to do harm: refused by name.

Nothing of a file is looked up by a name that it chooses, imported, or written to the disk.
"""

import hashlib
import json
import random
import struct
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import foretrace
from foretrace.serialization.archive import zip_file as archive
from foretrace.serialization.archive.manifest import MANIFEST, TENSORS
from foretrace.serialization.archive.zip_file import SUFFIX
from foretrace.serialization.schema.errors import PROGRAM

Members = dict[str, bytes]
Change = Callable[[Members], None]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path: Path = tmp_path_factory.mktemp("saved") / "good.ft"
    model = nn.Sequential(nn.Linear(4, 3), nn.GELU())
    program = foretrace.capture(model, (torch.randn(2, 4),), dynamic_shapes=True)
    program.save(path, "export", "pair")
    return path


def members(path: Path) -> Members:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def rewritten(good: Path, path: Path, change: Change, *, hashed: bool = True) -> Path:
    """The file with other members; `hashed`: with their hashes, as whoever writes one may."""
    found = members(good)
    change(found)
    if hashed and MANIFEST in found:
        manifest = json.loads(found[MANIFEST])
        for name in manifest["members"]:
            if name in found:
                data = found[name]
                digest = hashlib.sha256(data).hexdigest()
                manifest["members"][name] = {"bytes": len(data), "sha256": digest}
        found[MANIFEST] = json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w") as file:
        for name, data in found.items():
            file.writestr(name, data)
    return path


def refused(path: Path) -> foretrace.Refusal:
    before = set(sys.modules)
    with pytest.raises(foretrace.Refusal) as caught:
        foretrace.load(path)
    assert not {name for name in set(sys.modules) - before if not name.startswith("torch")}
    assert caught.value.do
    return caught.value


def in_manifest(**changed: Any) -> Change:
    def change(found: Members) -> None:
        found[MANIFEST] = json.dumps({**json.loads(found[MANIFEST]), **changed}).encode()

    return change


def in_program(change: Callable[[Any], None]) -> Change:
    def changed(found: Members) -> None:
        program = json.loads(found[PROGRAM])
        change(program)
        found[PROGRAM] = json.dumps(program).encode()

    return changed


def test_another_major_version_is_named(good: Path, tmp_path: Path) -> None:
    path = rewritten(good, tmp_path / "three.ft", in_manifest(version=[3, 0]))
    refusal = refused(path)
    assert refusal.kind == "artifact version"
    assert "version 3.0" in refusal.what


def test_a_later_minor_version_is_read(good: Path, tmp_path: Path) -> None:
    later = in_manifest(version=[2, 7], more="what this reader does not know")
    loaded = foretrace.load(rewritten(good, tmp_path / "later.ft", later))
    assert loaded(torch.ones(2, 4)).shape == (2, 3)


NAMED: dict[str, tuple[Change, str]] = {
    "another_format": (in_manifest(format="model"), MANIFEST),
    "no_version": (in_manifest(version="1"), MANIFEST),
    "no_members": (in_manifest(members=[]), MANIFEST),
    "no_manifest": (lambda found: found.pop(MANIFEST), MANIFEST),
    "no_program": (lambda found: found.pop(PROGRAM), PROGRAM),
    "no_tensors": (lambda found: found.pop(TENSORS), TENSORS),
    "a_way_out": (lambda found: found.update({"../../evil.py": b"1"}), "../../evil.py"),
    "a_pickle": (lambda found: found.update({"data.pkl": b"1"}), "data.pkl"),
    "beside_elsewhere": (in_manifest(beside="../x.safetensors"), "../x.safetensors"),
    "beside_missing": (in_manifest(beside="x.safetensors"), "x.safetensors"),
    "no_json": (lambda found: found.update({PROGRAM: b"{"}), PROGRAM),
    "deep_json": (lambda found: found.update({PROGRAM: b"[" * 100_000}), PROGRAM),
    "a_list": (lambda found: found.update({PROGRAM: b"[]"}), PROGRAM),
    "no_safetensors": (lambda found: found.update({TENSORS: b"garbage!" * 9}), TENSORS),
    "huge_header": (
        lambda found: found.update({TENSORS: struct.pack("<Q", 1 << 60) + b"{}"}), TENSORS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_it_is_refused_by_name(name: str, good: Path, tmp_path: Path) -> None:
    change, told = NAMED[name]
    refusal = refused(rewritten(good, tmp_path / "bad.ft", change))
    assert told in refusal.what
    assert refusal.kind == "damaged artifact"


@pytest.mark.parametrize("name", [PROGRAM, TENSORS])
def test_a_flipped_bit_is_named(name: str, good: Path, tmp_path: Path) -> None:
    def flip(found: Members) -> None:
        data = bytearray(found[name])
        data[len(data) // 2] ^= 1
        found[name] = bytes(data)

    refusal = refused(rewritten(good, tmp_path / "bad.ft", flip, hashed=False))
    assert name in refusal.what
    assert "hash" in refusal.what


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.99])
def test_a_truncated_file_is_refused(part: float, good: Path, tmp_path: Path) -> None:
    data = good.read_bytes()
    (tmp_path / "short.ft").write_bytes(data[: int(len(data) * part)])
    assert "short.ft" in refused(tmp_path / "short.ft").what


def test_no_file(tmp_path: Path) -> None:
    assert refused(tmp_path / "none.ft").kind == "no artifact"


def test_a_member_that_is_too_large(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not unpacked to be looked at."""
    path = tmp_path / "bomb.ft"
    monkeypatch.setattr(archive, "LARGEST_TEXT", 1 << 20)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members(good).items():
            file.writestr(name, b" " * (2 << 20) if name == PROGRAM else data)
    refusal = refused(path)
    assert PROGRAM in refusal.what
    assert "the most is" in refusal.what


def test_compressed_tensors_are_refused(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "bomb.ft"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members(good).items():
            file.writestr(name, data)
    assert "compressed" in refused(path).what


def test_a_member_twice(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "twice.ft"
    with zipfile.ZipFile(path, "w") as file:
        for name, data in members(good).items():
            file.writestr(name, data)
        with pytest.warns(UserWarning, match="Duplicate"):
            file.writestr(PROGRAM, b"{}")
    assert "twice" in refused(path).what


def test_the_file_beside_is_held_to_its_hash(good: Path, tmp_path: Path) -> None:
    program = foretrace.load(good).program
    program.save(tmp_path / "model.ft", parameters="beside")
    assert foretrace.load(tmp_path / "model.ft")(torch.ones(2, 4)).shape == (2, 3)
    other = tmp_path / f"model{SUFFIX}"
    data = bytearray(other.read_bytes())
    data[-1] ^= 1
    other.write_bytes(data)
    assert TENSORS in refused(tmp_path / "model.ft").what


# ---------------------------------------------------------------------- written to do harm


def of_tag(program: Any, tag: str) -> Any:
    return next(row for row in program["records"] if row[0] == tag)


def beyond(program: Any) -> None:
    """A tensor that sees more than its memory."""
    program["tensors"][0]["shape"] = [1 << 40]
    program["tensors"][0]["stride"] = [1]


def other_dtype(program: Any) -> None:
    program["tensors"][0]["dtype"] = "load"


def a_function(program: Any) -> None:
    of_tag(program, "op")[1] = {"python": "os.system"}


def an_operator(program: Any) -> None:
    of_tag(program, "op")[1] = {"op": "aten::__init__.__globals__"}


def a_line(program: Any) -> None:
    """A line of a generated function has it in a comment."""
    of_tag(program, "line")[1] = "a.py\nimport os"


def a_mode(program: Any) -> None:
    program["parts"][0]["training"] = "__import__('os')"


def a_symbol(program: Any) -> None:
    text = json.dumps(program)
    assert '"symbol", "s' in text
    program.clear()
    program.update(json.loads(text.replace('["symbol", "s', '["symbol", "__import__(1)+s')))


def a_size(program: Any) -> None:
    of_tag(program, "type")[1] = {"tuple": ["__import__('os')"]}


def a_keyword(program: Any) -> None:
    of_tag(program, "op")[3] = {"dict": [["a=__import__('os'), b", 1]]}


def a_reference(program: Any) -> None:
    """Records speak of those before them alone."""
    of_tag(program, "op")[2] = {"@": len(program["records"])}


def an_input(program: Any) -> None:
    program["requires"]["gradients"] = {"dict": [[99, None]]}


def a_piece_of_itself(program: Any) -> None:
    number = next(n for n, row in enumerate(program["records"]) if row[0] == "op")
    program["pieces"] = [[number, number]]


def itself(program: Any) -> None:
    program["parts"][0]["children"]["0"] = 0


def a_class(program: Any) -> None:
    """It is not looked up: something else stands for it, and no call can give it."""
    program["requires"]["in_structure"]["structure"]["spec"] = ["subprocess.Popen", ["ls"], []]


HARM = (
    beyond, other_dtype, a_function, an_operator, a_line, a_mode, a_symbol, a_size, a_keyword,
    a_reference, an_input, a_piece_of_itself, itself, a_class,
)  # fmt: skip


@pytest.mark.parametrize("change", HARM, ids=lambda change: change.__name__)
def test_what_would_do_harm_is_refused(
    change: Callable[[Any], None], good: Path, tmp_path: Path
) -> None:
    path = rewritten(good, tmp_path / "harm.ft", in_program(change))
    assert refused(path).kind in {"damaged artifact", "unknown operator", "unknown class"}


WRONG = (None, True, -1, 1 << 70, 1.5, "x", [], {}, {"@": 0}, {"tuple": []}, ["op"])
STOPS = 0.2


def put_somewhere(program: Any, drawn: random.Random) -> None:
    """Something else in the place of a part, however deep it is."""
    place: Any = program
    while place:
        key = drawn.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if not isinstance(place[key], (dict, list)) or drawn.random() < STOPS:
            place[key] = drawn.choice(WRONG)
            return
        place = place[key]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(150))
def test_any_change_gives_a_program_or_a_refusal(seed: int, good: Path, tmp_path: Path) -> None:
    """With the right hashes: nothing but a Refusal leaves `load`, or what is called afterwards."""
    drawn = random.Random(seed)
    change = in_program(lambda program: put_somewhere(program, drawn))
    path = rewritten(good, tmp_path / "fuzzed.ft", change)
    with suppress(foretrace.Refusal):
        used(foretrace.load(path))


def used(loaded: foretrace.Loaded) -> None:
    """All that a file is for: a call, its graphs, and what explains their nodes."""
    loaded(torch.ones(2, 4))
    cuts = [loaded.cut("export"), *loaded.pair()]
    for cut in cuts:
        for node in cut.nodes:
            cut.explain(node)


def ops_of(program: Any) -> Any:
    return (row for row in program["records"] if row[0] == "op")


def other_operand(program: Any) -> None:
    """Arguments are not what their operands say."""
    for row in ops_of(program):
        row[12] = {"tuple": []}


def other_argument(program: Any) -> None:
    for row in ops_of(program):
        row[2] = {"tuple": [1.5]}


def other_result(program: Any) -> None:
    for row in ops_of(program):
        row[4] = None


def other_body(program: Any) -> None:
    number = next(n for n, row in enumerate(program["records"]) if row[0] == "line")
    of_tag(program, "op")[7] = {"@": number}


def no_symbols(program: Any) -> None:
    program["symbols"] = None


@pytest.mark.parametrize(
    "change", [other_operand, other_argument, other_result, other_body, no_symbols],
    ids=lambda change: change.__name__,
)  # fmt: skip
def test_a_malformed_op_is_refused_where_the_file_is_read(
    change: Callable[[Any], None], good: Path, tmp_path: Path
) -> None:
    path = rewritten(good, tmp_path / "malformed.ft", in_program(change))
    assert refused(path).kind == "damaged artifact"


# ----------------------------------------------------------------------------- Python state


class Trainer:
    """A step that leaves what a file can hold: a counter, an average, the last losses, a log."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 9)
        self.log = list[float]()
        self.calls, self.mean, self.recent = 0, torch.zeros(3), [torch.zeros(()), torch.zeros(())]

    def step(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        self.schedule.step()
        self.calls += 1
        self.mean = self.mean * 0.5 + self.model[1].running_mean
        self.recent.append(loss.detach())
        self.recent.pop(0)
        self.log.append(loss.item())
        return loss.detach() * self.calls


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path: Path = tmp_path_factory.mktemp("saved") / "step.ft"
    trainer = Trainer()
    for _ in range(2):
        trainer.step(torch.ones(5, 4))
    foretrace.capture(trainer.step, (torch.ones(5, 4),)).save(path)
    return path


def of_python(program: Any) -> dict[str, Any]:
    """The parts of the Python state, by name."""
    return dict(program["python"]["dict"]) | dict(program["shared"]["dict"])


def no_such_holder(program: Any) -> None:
    of_python(program)["states"][0]["tuple"][0]["tuple"][2] = 99


def no_such_output(program: Any) -> None:
    of_python(program)["states"][0]["tuple"][2] = 1 << 40


def no_such_input(program: Any) -> None:
    of_python(program)["reads"][0]["tuple"][0] = 99


def filling(program: Any) -> list[Any]:
    """The state that is a list which calls fill: its place, its structure, and so on."""
    told = [each["tuple"] for each in of_python(program)["states"]]
    return next(each for each in told if each[0]["tuple"][0] == "filling")


def another_way_to_fill(program: Any) -> None:
    filling(program)[0]["tuple"][3] = {"tuple": ["clear"]}


def no_ways_to_fill(program: Any) -> None:
    filling(program)[0]["tuple"][3] = 1


def more_ways_than_items(program: Any) -> None:
    filling(program)[0]["tuple"][3] = {"tuple": ["append", "append"]}


def another_container(program: Any) -> None:
    of_python(program)["holders"][1]["tuple"][0] = "subprocess.Popen"


def a_name_that_is_code(program: Any) -> None:
    of_python(program)["objects"][0]["tuple"][0] = ["__import__('os')"]


def an_owner_that_is_none(program: Any) -> None:
    of_python(program)["owners"].append({"tuple": [0, 5, "weight"]})


def a_group_without_parameters(program: Any) -> None:
    of_python(program)["optimizers"][0]["tuple"][2] = 0


def a_number_of_another_kind(program: Any) -> None:
    of_python(program)["reads"][0]["tuple"][1]["tuple"][4] = {"type": "list"}


def a_guard_on_nothing(program: Any) -> None:
    of_python(program)["held"][0]["tuple"][2] = "x"


def no_python_state(program: Any) -> None:
    """The graph still has inputs that it would read there."""
    del program["python"]


STATE = (
    another_way_to_fill, no_ways_to_fill, more_ways_than_items,
    no_such_holder, no_such_output, no_such_input, another_container, a_name_that_is_code,
    an_owner_that_is_none, a_group_without_parameters, a_number_of_another_kind,
    a_guard_on_nothing, no_python_state,
)  # fmt: skip


@pytest.mark.parametrize("change", STATE, ids=lambda change: change.__name__)
def test_state_that_is_not_as_it_was_told_is_refused(
    change: Callable[[Any], None], step: Path, tmp_path: Path
) -> None:
    refusal = refused(rewritten(step, tmp_path / "harm.ft", in_program(change)))
    assert refusal.kind == "damaged artifact"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(100))
def test_any_change_of_state_gives_a_program_or_a_refusal(
    seed: int, step: Path, tmp_path: Path
) -> None:
    """Nothing but a Refusal leaves `load`, nor a call of what is loaded."""
    drawn = random.Random(seed)
    part = drawn.choice(["python", "shared"])
    change = in_program(lambda program: put_somewhere(program[part], drawn))
    path = rewritten(step, tmp_path / "fuzzed.ft", change)
    with suppress(foretrace.Refusal):
        loaded = foretrace.load(path)
        assert repr(loaded.objects)
        assert dict(loaded.python_state) is not None
        loaded(torch.ones(5, 4))


def without(*names: str) -> Callable[[Any], None]:
    def change(program: Any) -> None:
        for name in names:
            del program[name]

    return change


def test_an_older_minor_version_is_read(good: Path, tmp_path: Path) -> None:
    """It may have no Python state."""

    def older(found: Members) -> None:
        in_manifest(version=[2, 0])(found)
        in_program(without("python", "shared", "more"))(found)

    loaded = foretrace.load(rewritten(good, tmp_path / "older.ft", older))
    assert loaded(torch.ones(2, 4)).shape == (2, 3)
