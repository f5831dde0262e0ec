"""Walks generated Triton source with the declared width of every integer, and stops where a value does not fit.

No memory and no device: the kernel's arguments are the extents and strides of a call of any size, every lane is the last of its
axis, every loop at its last tile, and a table gives what the caller says.  `audit` returns the largest offset of each
tensor that was addressed, in elements.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

LIMITS = {32: 2**31, 64: 2**63}


class Wraps(Exception):
    """An integer expression leaves its type at these sizes."""


@dataclass(frozen=True)
class Number:
    value: int
    bits: int
    lane: bool = False  # varies along a tile: other lanes have smaller values


@dataclass(frozen=True)
class Pointer:
    tensor: str
    offset: int


@dataclass
class _Walk:
    names: dict[str, Number | Pointer | None]
    tables: Mapping[str, Callable[[int], int]]
    last: Mapping[str, int]
    blocks: int
    reached: dict[str, int] = field(default_factory=dict)

    def run(self, body: Sequence[ast.stmt]) -> None:
        for s in body:
            match s:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    found = self.value(value)
                    self.names[name] = Number(self.last[name], 32) if name in self.last else found
                case ast.For(target=ast.Name(id=name), iter=ast.Call(args=[_, hi])):
                    end = self.value(hi)
                    assert isinstance(end, Number), ast.unparse(s.iter)
                    self.names[name] = Number(max(end.value - 1, 0), 32)
                    self.run(s.body)
                case ast.If():
                    self.run(s.body)
                case ast.While() | ast.AugAssign():
                    pass  # a search: `last` says what it finds
                case ast.Expr(value=value):
                    self.value(value)
                case _:
                    raise AssertionError(ast.unparse(s))

    def value(self, e: ast.expr) -> Number | Pointer | None:
        match e:
            case ast.Constant(value=int(v)) if not isinstance(v, bool):
                return Number(v, 32 if -(2**31) <= v < 2**31 else 64)
            case ast.Name(id=name):
                return self.names.get(name)
            case ast.Subscript(value=x):
                return self.value(x)
            case ast.UnaryOp(op=ast.USub(), operand=x):
                found = self.value(x)
                return self.fit(e, -found.value, found.bits) if isinstance(found, Number) else None
            case ast.BinOp(left=left, op=op, right=right):
                return self.binary(e, self.value(left), op, self.value(right))
            case ast.Call(func=ast.Attribute(attr=name, value=of), args=args):
                rest = [self.value(a) for a in args]
                for keyword in e.keywords:
                    self.value(keyword.value)
                return self.call(
                    e, name, rest if isinstance(of, ast.Name) and of.id == "tl" else [self.value(of), *rest]
                )
            case ast.Call(func=ast.Name(id=name), args=args):
                return self.call(e, name, [self.value(a) for a in args])
            case ast.Compare(left=left, comparators=others):
                for x in (left, *others):
                    self.value(x)
        return None

    def fit(self, e: ast.expr, value: int, bits: int, lane: bool = False) -> Number:
        if not -LIMITS[bits] <= value < LIMITS[bits]:
            raise Wraps(f"{ast.unparse(e)} is {value}")
        return Number(value, bits, lane)

    def binary(
        self, e: ast.expr, a: Number | Pointer | None, op: ast.operator, b: Number | Pointer | None
    ) -> Number | Pointer | None:
        if isinstance(a, Pointer) and isinstance(b, Number):
            return Pointer(a.tensor, a.offset + b.value)
        if not isinstance(a, Number) or not isinstance(b, Number):
            return None
        x, y, bits, lane = a.value, b.value, max(a.bits, b.bits), a.lane or b.lane
        match op:
            case ast.Add():
                return self.fit(e, x + y, bits, lane)
            case ast.Sub():
                return self.fit(e, x - y, bits, lane)
            case ast.Mult():
                return self.fit(e, x * y, bits, lane)
            case ast.FloorDiv():
                return self.fit(e, x // y, bits, lane)
            case ast.Mod():
                return Number(y - 1 if a.lane else x % y, bits, lane)
        return None

    def call(self, e: ast.Call, name: str, args: list[Number | Pointer | None]) -> Number | Pointer | None:
        numbers = [a for a in args if isinstance(a, Number)]
        match name:
            case "program_id":
                return Number(self.blocks - 1, 32)
            case "arange":
                return Number(numbers[1].value - 1, 32, lane=True)
            case "to" | "cast":
                kind = ast.unparse(e.args[-1])
                if not numbers or "int" not in kind:
                    return None
                return self.fit(e, numbers[0].value, 64 if "int64" in kind else 32, numbers[0].lane)
            case "load" | "store":
                at = args[0]
                assert isinstance(at, Pointer), ast.unparse(e)
                self.reached[at.tensor] = max(self.reached.get(at.tensor, 0), at.offset)
                return Number(self.tables[at.tensor](at.offset), 32) if at.tensor in self.tables else None
            case "maximum" | "where" if numbers:
                return max(numbers, key=lambda n: n.value)
            case "minimum" if len(numbers) == 2:
                return min(numbers, key=lambda n: n.value)
            case "cdiv":
                bits = max(n.bits for n in numbers)
                return self.fit(
                    e, (self.fit(e, numbers[0].value + numbers[1].value - 1, bits).value) // numbers[1].value, bits
                )
            case "floor_div" | "floor_mod" if len(numbers) == 2:
                return self.binary(e, args[0], ast.FloorDiv() if name == "floor_div" else ast.Mod(), args[1])
        return None


def audit(
    source: str,
    metadata: Mapping[str, object],
    extents: Mapping[str, int],
    strides: Mapping[str, Sequence[int]],
    *,
    blocks: int,
    last: Mapping[str, int],
    tables: Mapping[str, Callable[[int], int]] | None = None,
) -> dict[str, int]:
    """Largest offset per tensor.  `last`: scalars to take at this value (tile coordinates, what searches find).

    Raises Wraps."""
    names: dict[str, Number | Pointer | None] = {n: Number(v, 32) for n, v in metadata["constants"].items()}
    for name, kind, of, dimension in metadata["arguments"]:
        match kind:
            case "pointer":
                names[name] = Pointer(of, 0)
            case "stride":
                names[name] = Number(strides[of][dimension], 64)
            case "extent":
                names[name] = Number(extents[of], 32)
    (function,) = (
        x for x in ast.parse(source).body if isinstance(x, ast.FunctionDef) and x.name == metadata["function"]
    )
    walk = _Walk(names, tables or {}, last, blocks)
    walk.run([s for s in function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))])
    return walk.reached
