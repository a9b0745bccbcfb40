"""Open numbers: ShapeEnv, SymNode, and floats that torch follows."""
