"""Text of one matrix instruction: `wgmma` (PTX ISA, wgmma.mma_async) over fragments as `prelude` has them."""

from __future__ import annotations


def product(name: str, n: int, dtype: str, registers: bool, transposed: bool) -> str:
    """d = a . b, or d += a . b: `wgmma` of 64 x n x 16, a in registers or shared memory, b in shared memory with its rows the
    contracted axis if `transposed`."""
    outs = n // 2
    d = ", ".join(f"%{i}" for i in range(outs))
    a = ", ".join(f"%{i}" for i in range(outs, outs + 4)) if registers else f"%{outs}"
    b, keep = (outs + 4, outs + 5) if registers else (outs + 1, outs + 2)
    of = f"{{{a}}}" if registers else a
    flags = f"p, 1, 1, {int(transposed)}" if registers else f"p, 1, 1, 0, {int(transposed)}"
    outputs = ",\n        ".join(_filled([f'"+f"(d[{i}])' for i in range(outs)], 8))
    given = ", ".join(f'"r"(a[{i}])' for i in range(4)) if registers else '"l"(a)'
    kind = "const unsigned* a" if registers else "unsigned long long a"
    words = "\n".join(f'      "{x}"' for x in _filled([*d.split(", ")], 20, joined=True))
    return f"""
DEVICE void {name}(float (&d)[{outs}], {kind}, unsigned long long b, bool keep) {{
  asm volatile(
      "{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{keep}, 0;\\n"
      "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{dtype}.{dtype} {{"
{words}
      "}}, {of}, %{b}, {flags};\\n}}"
      : {outputs}
      : {given}, "l"(b), "r"((int)keep)
      : "memory");
}}
"""


def _filled(words: list[str], count: int, *, joined: bool = False) -> list[str]:
    """`words` in lines of `count`; `joined`: each line but the last ends with a comma."""
    lines = [", ".join(words[i : i + count]) for i in range(0, len(words), count)]
    return [line + ", " for line in lines[:-1]] + lines[-1:] if joined else lines
