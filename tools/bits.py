"""The tests that compare with eager bit by bit, under settings that choose other kernels.

    python -m tools.bits [--only WORD ...] [--every N] [--list]

Each setting is a process of its own, as libraries read these variables when they are loaded. At the
end there is a table; the exit code is 1 where a test fails.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SUITES: Final = (
    "tests/against_eager/test_zoo.py", "tests/against_eager/test_pair.py",
    "tests/dropin/test_compile_zoo.py", "tests/steps/test_steps.py",
)  # fmt: skip
"""Those that hold programs beside eager to the last bit"""
THREADS: Final = "OMP_NUM_THREADS"
SETTINGS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({
    "MKL_CBWR": ("COMPATIBLE", "SSE4_2", "AVX2", "AVX512"),
    "MKL_ENABLE_INSTRUCTIONS": ("SSE4_2", "AVX2", "AVX512"),
    "ONEDNN_MAX_CPU_ISA": ("SSE41", "AVX2", "AVX512_CORE"),
    "ATEN_CPU_CAPABILITY": ("default", "avx2", "avx512"),
    THREADS: ("1", "2", "4"),
})  # fmt: skip
"""What each library may be told; a processor without an instruction set takes what it has"""
SHOWN: Final = 6000
"""How much is printed of a run that fails, from its end"""
COUNTS: Final = re.compile(r"(\d+) (passed|failed|error)")


def settings() -> Iterator[tuple[str, str]]:
    """Each variable with each of its values."""
    for name, values in SETTINGS.items():
        yield from ((name, value) for value in values)


def counts(printed: str) -> dict[str, int]:
    """What pytest says in its last line."""
    lines = [line for line in printed.splitlines() if line.strip()]
    return {what: int(n) for n, what in COUNTS.findall(lines[-1])} if lines else {}


def run(name: str, value: str, every: int) -> tuple[int, dict[str, int], str]:
    """One setting: pytest's exit code, its counts and what it printed.

    Inductor's cache does not ask for which instruction set a kernel was written (torch 2.13), so
    each setting has one of its own.
    """
    env = {**os.environ, THREADS: "1", name: value, "PYTHONDONTWRITEBYTECODE": ""}
    options = ["-q", "-m", "not slow", "-p", "no:cacheprovider", "--tb=short"]
    command = [sys.executable, "-m", "pytest", *options, f"--every={every}", *SUITES]
    with tempfile.TemporaryDirectory() as cache:
        env["TORCHINDUCTOR_CACHE_DIR"] = cache
        found = subprocess.run(
            command, cwd=ROOT, env=env, capture_output=True, text=True, check=False
        )
    return found.returncode, counts(found.stdout), found.stdout + found.stderr


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join((*lines, "")))
    sys.stdout.flush()


def main(argv: list[str] | None = None) -> int:
    """Run the settings, print a table, and say whether all is well."""
    parser = argparse.ArgumentParser(prog="python -m tools.bits", description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="settings that have one of these in")
    parser.add_argument("--every", type=int, default=4, help="one test in so many")
    parser.add_argument("--list", action="store_true", help="name the settings, run nothing")
    args = parser.parse_args(argv)
    chosen = [(name, value) for name, value in settings()
              if not args.only or any(word in f"{name}={value}" for word in args.only)]  # fmt: skip
    if args.list:
        _say(*(f"{name}={value}" for name, value in chosen))
        return 0
    rows, failed = [], not chosen
    for name, value in chosen:
        began = time.monotonic()
        code, found, printed = run(name, value, args.every)
        bad = found.get("failed", 0) + found.get("error", 0)
        took = time.monotonic() - began
        rows.append(f"{name + '=' + value:<36}{found.get('passed', 0):>8}{bad:>8}{took:>8.0f} s")
        _say(rows[-1])
        if code:
            failed = True
            _say(printed[-SHOWN:])
    _say(f"\n{'setting':<36}{'passed':>8}{'failed':>8}{'time':>10}", *rows)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
