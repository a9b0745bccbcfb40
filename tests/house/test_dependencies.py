"""What the package imports is what it declares: pyproject.toml, and a reason in decision 001."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import packages_distributions

import pytest

from foretrace.runtime.backends.by_name import ADAPTERS
from tests.house.test_house import IR, PACKAGE, ROOT, Source, read

DISTRIBUTIONS = packages_distributions()
SINCE_3_14 = {"annotationlib"}
"""Modules of the standard library that the Python that runs the test may not have"""


def imported(source: Source) -> set[str]:
    """The distributions of what a file imports that is neither Python's own nor the package's."""
    roots = {full.split(".")[0] for _, _, full in source.imports} | set(late(source))
    others = roots - sys.stdlib_module_names - SINCE_3_14 - {"foretrace"}
    return {plain(name) for root in others for name in DISTRIBUTIONS.get(root, [root])}


def late(source: Source) -> Iterator[str]:
    """What `import_module` is asked for by name."""
    for node in source.nodes:
        match node:
            case ast.Call(
                func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name))],
            ):
                yield name.split(".")[0]


def plain(name: str) -> str:
    """The name of a distribution as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(extras: Iterable[str] = ()) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = (each for extra in extras for each in project["optional-dependencies"][extra])
    return {plain(re.match(r"[\w.-]+", each)[0]) for each in (*project["dependencies"], *optional)}


EXTRAS = {each.extra for each in ADAPTERS.values()}
MODULES = {"iree": {"iree-base-compiler", "iree-base-runtime"}, "tvm": {"apache-tvm"}}
"""What a namespace of other distributions is of"""
BROUGHT = {"onnx", "onnxscript"}
"""What torch imports, asked by an adapter"""


def test_what_is_imported_is_declared_and_the_other_way_round() -> None:
    found = {path: imported(read(path)) for path in PACKAGE}
    room = "foretrace/runtime/adapters/"
    every = set[str]()
    for path, names in found.items():
        optional = EXTRAS if str(path).startswith(room) else ()
        known = set[str]().union(*(MODULES.get(name, {name}) for name in names))
        assert known <= declared(optional), path
        every |= known
    assert declared(EXTRAS) - BROUGHT <= every


def test_what_is_declared_has_its_reason() -> None:
    text = (ROOT / "docs/decisions/001-dependencies.md").read_text()
    items = re.findall(r"^- ((?:`[^`]+`,? ?)+)", text, re.MULTILINE)
    named = {plain(name) for item in items for name in re.findall(r"`([\w-]+)", item)}
    assert declared(EXTRAS) <= named


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import numpy as np", {"numpy"}),
        ("from numpy.random import rand", {"numpy"}),
        ("try:\n    import numpy\nexcept ImportError:\n    pass", {"numpy"}),
        ("import yaml", {"pyyaml"}),
        ("def f():\n    return import_module('numpy.random')", {"numpy"}),
        ("import not_installed.part", {"not-installed"}),
        ("import os.path\nfrom foretrace import errors\nfrom collections import abc", set()),
    ],
)
def test_an_import_is_seen(text: str, names: set[str]) -> None:
    assert imported(Source(IR, text)) == names
