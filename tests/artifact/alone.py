"""Run by path in a process of its own, without the model's source: load, train, explain, compare.

Usage: alone.py FOLDER. Prints one JSON object: {what: true or what is wrong}.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

import foretrace
from foretrace.runtime.calls.run_cut import run_pair

MODULES = ("transformers", "tests", "model_of_the_test")


def trained(path: Path, how: str, expected: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The state after as many steps as eager made."""
    loaded = foretrace.load(path)
    torch.manual_seed(expected["seed"])
    optimizer = torch.optim.AdamW(loaded.parameters(), lr=1e-2)
    for kwargs in expected["batches"]:
        optimizer.zero_grad()
        if how == "module":
            loaded(**kwargs)["loss"].backward()
        else:
            by_pair = how == "pair"
            cut = loaded.cut("forward" if by_pair else how)
            found = run_pair(*loaded.pair(), (), kwargs, None) if by_pair else cut(**kwargs)
            for name, parameter in loaded.named_parameters():
                parameter.grad = found[1][name]
        optimizer.step()
    state: dict[str, torch.Tensor] = loaded.state_dict()
    return state


def said(cut: Any, name: str) -> str:
    """The way to a node; where breakpoints stop depends on what a process has imported."""
    return str(cut.explain(name)).partition("\n  break")[0]


def main() -> None:
    folder = Path(sys.argv[1])
    path, found = folder / "model.ft", dict[str, Any]()
    expected = torch.load(folder / "expected.pt")
    torch.set_num_threads(expected["threads"])
    for how in ("module", "joint", "pair"):
        state, wanted = trained(path, how, expected), expected["state"]
        same = list(state) == list(wanted)
        same = same and all(torch.equal(state[name], wanted[name]) for name in wanted)
        found[how] = same
    cut = foretrace.load(path).cut("joint")
    told = {name: said(cut, name) for name in expected["told"]}
    found["explained"] = told == expected["told"]
    found["same"] = not foretrace.diff(cut, foretrace.load(path).cut("joint"))
    found["alone"] = [name for name in MODULES if name in sys.modules]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
