"""Cases whose speed is measured: bf16, 16384 tokens and 2048 features over all heads unless said otherwise."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from tilec.bench import Options, Result, bench_kernel
from tilec.frontend import read_spec

TOKENS, WIDTH = 16384, 2048  # batch * length, heads * head dim

SPEC = """kernel {name} {{
  index  b : B, h : {heads}, q : M, k : N, d : {d}
  {param}
  query  Q[b, q, h, d] : bf16
  key    K[b, k, h, d] : bf16
  value  V[b, k, h, d] : bf16
  output O[b, q, h, d] : bf16
  scale  1 / sqrt({d})
  {score}
  {mask}
}}
"""


@dataclass(frozen=True)
class Row:
    """One case.  `batch` and `heads` None: as many as make `TOKENS` and `WIDTH`.  `bar`: the least ratio of the best other
    implementation's time to ours."""

    name: str
    d: int
    s: int
    mask: str = ""
    score: str = ""
    param: str = ""
    bar: float | None = None
    batch: int | None = None
    heads: int | None = None

    def spec(self) -> str:
        mask = f"mask {self.mask}" if self.mask else ""
        fields = {"name": self.name, "heads": self.heads or WIDTH // self.d, "d": self.d}
        return SPEC.format(**fields, param=self.param, score=self.score, mask=mask)

    def shape(self) -> dict[str, int]:
        return {"B": self.batch or TOKENS // self.s, "M": self.s, "N": self.s}


CAUSAL = "k <= q"
VARIANTS = [
    Row("window", 128, 16384, "k <= q and q - k < 1024"),
    Row("documents", 128, 16384, "doc[b, q] == doc[b, k] and k <= q", param="param doc[b, k] : i32 nondecreasing"),
    Row("prefix", 128, 16384, "k <= q or k < 4096"),
    Row("softcap", 128, 16384, CAUSAL, "score s = 30.0 * tanh(s / 30.0)"),
    Row("alibi", 128, 16384, CAUSAL, "score s = s - slope[h] * (q - k)", "param slope[h] : f32"),
    Row("dilated", 128, 16384, "k <= q and (q - k) % 4 == 0"),
]


def measure(row: Row, against: list[str], options: Options, backend: str | None = None, progress=None) -> Result:
    """Beside the implementations named in `against`, on this machine's sm90."""
    torch._dynamo.reset()  # FlexAttention recompiles per shape, and dynamo gives up after eight
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{row.name}.tile"
        path.write_text(row.spec(), encoding="utf-8")
        spec = read_spec(path)
        report = progress or (lambda _: None)
        return bench_kernel(spec, spec.kernels[0], "sm90", backend, row.shape(), against, options, report)
