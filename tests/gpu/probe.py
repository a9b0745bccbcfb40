"""`python -m tests.gpu.probe DEVICE`: what the device and its torch are, as one line of JSON.

A process of its own, as the one that starts the jobs touches no device. "missing" says why nothing
can run; it is empty where all can.
"""

import json
import platform
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import torch

PROJECT: Final = Path(__file__).parents[2] / "pyproject.toml"
RANGE: Final = "foretrace is for"
PACKAGES: Final = ("transformers", "rich", "networkx", "hypothesis", "expecttest", "triton")


def facts(device: str) -> dict[str, Any]:
    """The device, its target, and the versions of all that takes part."""
    known: dict[str, Any] = {
        "device": device,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "packages": {name: version(name) for name in PACKAGES},
        "target": device,
        "missing": lacking(device),
    }
    if device == "cuda" and torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        known |= {
            "name": torch.cuda.get_device_name(),
            "capability": [major, minor],
            "cudnn": torch.backends.cudnn.version(),
            "target": f"cuda:sm{major}{minor}",
        }
    return known


def version(package: str) -> str | None:
    """The installed version of a package; None without one."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def lacking(device: str) -> str:
    """Why nothing can run here, or nothing."""
    if device == "cuda" and not torch.cuda.is_available():
        build = f"a build for CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU build"
        return f"no CUDA device: torch {torch.__version__} is {build} and finds none"
    needs = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    wanted = next(need for need in needs if need.startswith("torch>"))
    if not fits(torch.__version__, wanted.removeprefix("torch")):
        return f"{RANGE} {wanted}, and this is torch {torch.__version__}"
    return ""


def fits(found: str, wanted: str) -> bool:
    """Whether a version is in a range such as ">=2.11,<2.14"."""
    number = numbers(found)
    least, most = (part.strip("<>=") for part in wanted.split(","))
    return numbers(least) <= number < numbers(most)


def numbers(text: str) -> tuple[int, ...]:
    """A version as major and minor."""
    return tuple(int(part) for part in text.split(".")[:2])


if __name__ == "__main__":
    sys.stdout.write(json.dumps(facts(sys.argv[1])) + "\n")
