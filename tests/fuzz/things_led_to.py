"""What leads to objects it does not hold, keys with an equality, objects of torch's own."""

from typing import Final

from tests.fuzz.thing import Thing, thing

LED_TO: Final[tuple[Thing, ...]] = (
    thing("led to", "from torch.utils.weak import WeakIdKeyDictionary\n"
          "ONE, TWO = torch.full((4,), 2.0), torch.full((4,), 3.0)\n"
          "LEADS, LED = weakref.ref(ONE), ONE\nBY_WEAK = weakref.WeakValueDictionary(w=ONE)\n"
          "BY_ID = WeakIdKeyDictionary()\nBY_ID[ONE] = 2.0",
          "x * (LEADS() is LED) + LED ; x * LEADS() ; x * BY_ID.get(LED, 5.0) ; "
          "x + BY_WEAK['w'] ; x * (TWO in BY_ID) ; x * (BY_WEAK['w'] is LED) + LED",
          "names['LED'] = TWO ; names['LEADS'] = weakref.ref(TWO) ; BY_ID[TWO] = 7.0 ; "
          "BY_WEAK['w'] = TWO ; BY_ID[ONE] = 9.0 ; ONE.mul_(2)"),
    thing("keys that say what they equal", "@dataclasses.dataclass(frozen=True)\nclass Key:\n"
          "    n: int = 1\n"
          "BY_KEY = {Key(1): 2.0, Key(2): torch.full((4,), 3.0)}\nKEYS_IN = {Key(1)}",
          "x * BY_KEY[Key(1)] ; x + BY_KEY[Key(2)] ; x * (Key(3) in BY_KEY) ; x * len(BY_KEY) ; "
          "x * (Key(2) in KEYS_IN) ; x * sum(k.n for k in BY_KEY)",
          "BY_KEY[Key(1)] = 5.0 ; BY_KEY[Key(2)] = torch.ones(4) ; BY_KEY[Key(3)] = 1.0 ; "
          "KEYS_IN.add(Key(2)) ; object.__setattr__(next(iter(BY_KEY)), 'n', 7) ; "
          "BY_KEY[Key(2)].mul_(3)"),
    thing("torch's own objects", "from torch.utils._ordered_set import OrderedSet\n"
          "import torch.distributions as td\n"
          "DIST = td.Normal(torch.zeros(4), torch.ones(4))\n"
          "SHIFT = td.transforms.AffineTransform(1.0, 2.0)\nORDERED = OrderedSet([1, 2])",
          "DIST.log_prob(x) ; SHIFT(x) ; x * DIST.mean ; x * (3 in ORDERED) ; x * len(ORDERED)",
          "DIST.loc = DIST.loc + 1 ; SHIFT.scale = 5.0 ; ORDERED.add(3) ; DIST.scale.mul_(2) ; "
          "names['DIST'] = td.Normal(torch.ones(4), torch.ones(4))"),
    thing("torch's data and settings", "from torch.utils.data import Subset, TensorDataset\n"
          "import torch._functorch.config as settings\n"
          "ROWS = TensorDataset(torch.full((3, 4), 2.0), torch.ones(3))\n"
          "PART, FREE = Subset(ROWS, [0, 1]), 'treat_parameters_as_free_to_save'",
          "x * ROWS[0][0] ; x * PART[1][0] + PART[0][1] ; x * len(PART) ; "
          "x * (2.0 if settings.treat_parameters_as_free_to_save else 3.0)",
          "ROWS.tensors = (torch.full((3, 4), 5.0), torch.ones(3)) ; PART.indices = [2, 0, 1] ; "
          "PART.indices[1] = 0 ; ROWS.tensors[0].mul_(2) ; names['PART'] = Subset(ROWS, [2, 2]) ; "
          "setattr(settings, FREE, not getattr(settings, FREE))"),
)  # fmt: skip
