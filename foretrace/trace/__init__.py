"""One op: recorded, its outcome looked up or learnt."""
