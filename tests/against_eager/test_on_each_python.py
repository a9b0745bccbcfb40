"""Programs whose bytecode differs between Pythons: each call is right, and as many capture again.

The number is that of Python 3.11. It is 0 where each number that data decides stays open; a name
that is read otherwise on another Python shows here as a call that captures once more.
"""

import types
from pathlib import Path
from typing import Any

import pytest
import torch

import foretrace
from tests.support.bits import same_bits

OPEN = {
    "a call": """
def f(x):
    return x * float(x.sum())
""",
    "annotations of a nested function": """
def f(x):
    def inner(v: float) -> float: return v
    return x * inner(float(x.sum()))
""",
    "annotations, defaults and a cell": """
def f(x):
    scale = x * 2
    def inner(v: float, w: int = 2, *, u: float | None = None) -> "float": return scale * v * w
    return inner(float(x.sum()))
""",
    "annotations of a method": """
class Scaled:
    rate: float = 0.5
    def scale(self, x, by: float, times: int = 2) -> float: return x * by * times * self.rate
def f(x):
    return Scaled().scale(x, float(x.sum()))
""",
    "annotations of a class inside": """
def f(x):
    class Held:
        rate: float = 0.5
        times: int = 2
    return x * float(x.sum()) * Held.rate
""",
    "a dataclass": """
import dataclasses
@dataclasses.dataclass
class Held:
    rate: float
    times: int = 2
def f(x):
    held = Held(float(x.sum()))
    return x * held.rate * held.times
""",
    "a type with arguments": """
def f(x):
    kinds = dict[str, float]
    return x * float(x.sum()) if kinds else x
""",
    "a test of its type": """
def f(x):
    v = float(x.sum())
    return x * v if isinstance(v, (int, float)) else x
""",
    "a test of its type among others": """
def f(x):
    v = float(x.sum())
    return x * v if isinstance(v, torch.Tensor) or isinstance(v, float | None) else x
""",
    "a key of a global": """
TABLE = {"a": 1, -50.0: 2}
def f(x):
    n = int(x.sum())
    return x * 2 if n in TABLE else x * n
""",
    "a key of a local": """
def f(x):
    table = {-50: 1, -51: 2}
    n = int(x.sum())
    return x * 2 if n in table else x * n
""",
    "a key of a constant": """
def f(x):
    n = int(x.sum())
    return x * 2 if n in {-50, -51} else x * n
""",
    "a key of an attribute": """
class Held: pass
HELD = Held()
HELD.table = {-50: 1}
def f(x):
    held = HELD
    n = int(x.sum())
    return x * 2 if n in held.table else x * n
""",
    "a key of a cell": """
def f(x):
    table = {-50: 1}
    def asked(n): return n in table
    n = int(x.sum())
    return x * 2 if asked(n) else x * n
""",
    "a walrus": """
def f(x):
    return x * v if (v := float(x.sum())) > -50.0 else x - v
""",
    "comprehensions": """
def f(x):
    return sum([float(row.sum()) * k for k, row in enumerate(x)]) * x
""",
    "a comprehension in a call": """
def total(*rows: float) -> float: return sum(rows)
def f(x):
    return x * total(*[float(row.sum()) for row in x])
""",
    "a generator": """
def f(x):
    def rows():
        for row in x:
            yield float(row.sum())
    return [x * v for v in rows()]
""",
    "keywords": """
def scaled(x, *, by, times=1): return x * by * times
def f(x):
    return scaled(x, by=float(x.sum()), times=int(x.argmax()))
""",
    "stars": """
def scaled(x, by, times=1): return x * by * times
def f(x):
    given, named = (x, float(x.sum())), {"times": int(x.argmax())}
    return scaled(*given, **named)
""",
    "a conditional argument": """
def f(x):
    return x * float(x.sum() if x.dim() == 2 else x) + int(x.argmax() if x.dim() else 3)
""",
    "a conditional callable": """
def f(x):
    return x * (float if x.dim() == 2 else int)(x.sum())
""",
    "a method": """
class Scaled:
    def __init__(self): self.last = 0.0
    def scale(self, x): return x * float(x.sum())
def f(x):
    return Scaled().scale(x)
""",
    "super": """
class Base:
    def scale(self, x): return x * float(x.sum())
class Scaled(Base):
    def scale(self, x): return super().scale(x) + int(x.argmax())
def f(x):
    return Scaled().scale(x)
""",
    "the largest": """
def f(x):
    return x * max(float(x.sum()), 0.5) + min(float(x[0, 0]), float(x[0, 1]))
""",
    "try and finally": """
def f(x):
    try:
        v = float(x.sum())
    except ValueError:
        v = 0.0
    finally:
        w = int(x.argmax())
    return x * v + w
""",
    "a context": """
def f(x):
    with torch.no_grad():
        v = float(x.sum())
    return x * v
""",
    "a loop": """
def f(x):
    v = 0.0
    for row in x:
        v += float(row.sum())
    while x.dim() > 2:
        x = x[0]
    return x * v
""",
    "a match": """
def f(x):
    v = float(x.sum())
    match x.dim():
        case 2: return x * v
        case _: return x
""",
    "items and slices": """
def f(x):
    kept = [0.0, 0.0, 0.0]
    kept[1:2] = [float(x.sum())]
    kept[0] += float(x[0, 0])
    named = {"v": 1.0}
    named["v"] *= kept[1]
    return x * named["v"] + kept[0]
""",
    "unpacking": """
def f(x):
    a, (b, *rest) = float(x.sum()), (float(x[0, 0]), *[float(v) for v in x[1]])
    a, b = b, a
    return x * a + b + sum(rest)
""",
    "a cell that is written": """
def f(x):
    total = 0.0
    def add(v: float) -> None:
        nonlocal total
        total += v
    for row in x: add(float(row.sum()))
    return x * total
""",
    "a decorated function": """
import functools
def twice(fn):
    @functools.wraps(fn)
    def inner(*args, **kwargs): return fn(*args, **kwargs) * 2
    return inner
@twice
def f(x: torch.Tensor) -> "float":
    return x * float(x.sum())
""",
    "a module": """
class f(torch.nn.Module):
    rate: float
    def __init__(self) -> None:
        super().__init__()
        self.rate = 0.5
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rate: float = self.rate
        return x * float(x.sum()) * rate
f = f()
""",
}
FIXED = {
    "a list of types": """
def f(x):
    kinds = [float]
    return x * float(x.sum()) * len(kinds)
""",
    "a type compared": """
def f(x):
    v = float(x.sum())
    return x * v if type(v) is float else x
""",
    "a type as an argument": """
def f(x):
    return sum(map(float, [x.sum()])) * x
""",
    "a default": """
def f(x):
    def inner(v, kind=float): return v
    return x * inner(float(x.sum()))
""",
    "a text": """
def f(x):
    return x * len(f"{float(x.sum()):.3f}") * 0 + x * float(x.sum())
""",
    "a key that is looked up": """
def f(x):
    return x * {-50.0: 2}.get(float(x.sum()), 3)
""",
}
DATA = [torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]


def program(source: str, tmp_path: Path) -> Any:
    """What a file of the user's calls `f`."""
    file = tmp_path / "of_a_user.py"
    file.write_text(f"import torch\n{source}")
    module = types.ModuleType("of_a_user")
    exec(compile(file.read_text(), str(file), "exec"), vars(module))  # noqa: S102
    return module.f


def recaptures(source: str, tmp_path: Path) -> list[Any]:
    fn = program(source, tmp_path)
    compiled = foretrace.compile(fn, fullgraph=True)
    for x in DATA:
        found, wanted = compiled(x), fn(x)
        pairs = zip(found, wanted, strict=True) if isinstance(found, list) else [(found, wanted)]
        assert all(same_bits(*pair) for pair in pairs)
    return list(compiled.recaptures)


@pytest.mark.parametrize("name", OPEN)
def test_numbers_stay_open(name: str, tmp_path: Path) -> None:
    assert not recaptures(OPEN[name], tmp_path)


@pytest.mark.parametrize("name", FIXED)
def test_numbers_are_fixed(name: str, tmp_path: Path) -> None:
    assert len(recaptures(FIXED[name], tmp_path)) == len(DATA) - 1


def test_a_reason_names_the_line(tmp_path: Path) -> None:
    first, *_ = recaptures(FIXED["a list of types"], tmp_path)
    file = tmp_path / "of_a_user.py"
    said = f"Python's own float ({file}:4 in f uses it otherwise than to call it) == "
    assert said in first.reason
    assert f"{file}:5 in f" in str(first)


BY_NAME = {
    "a text": 'x * getattr(HELD, "scale")',
    "a tuple": 'x * sum([getattr(HELD, name) for name in ("scale", "bias")])',
    "a set": 'x * sum([getattr(HELD, name) for name in sorted({"scale"} | {"bias"})])',
    "keywords": "x * getattr(HELD, names(scale=1)[0])",
}


@pytest.mark.parametrize("name", BY_NAME)
def test_attributes_by_names_in_constants_are_guarded(name: str, tmp_path: Path) -> None:
    source = f"""
class Held: pass
HELD = Held()
HELD.scale, HELD.bias = 2.0, 1.0
def names(**named): return [*named]
def f(x):
    return {BY_NAME[name]}
"""
    fn = program(source, tmp_path)
    compiled = foretrace.compile(fn, fullgraph=True)
    assert same_bits(compiled(DATA[0]), fn(DATA[0]))
    fn.__globals__["HELD"].scale = 5.0
    assert same_bits(compiled(DATA[0]), fn(DATA[0]))
    assert ["scale is 5.0" in each.reason for each in compiled.recaptures] == [True]
