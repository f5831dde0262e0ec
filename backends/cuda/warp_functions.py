"""Device functions of kernels whose warps multiply on their own: one PTX instruction each, or a few lines over fragments.

Sources: PTX ISA (cp.async, ldmatrix, mma.sync.m16n8k16).  A tile in shared memory lies in panels of rows of U units of 16 bytes,
which are exchanged within a row by its number, so that 8 rows of one column of units lie in all banks.
"""

from __future__ import annotations

_PRODUCT = """
// d += a . b of 16 x 8 over 16.
DEVICE void mma_{dtype}(float* d, const unsigned (&a)[4], unsigned b0, unsigned b1) {{
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.{dtype}.{dtype}.f32 {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}},"
               " {{%0, %1, %2, %3}};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}}
"""
_LOAD = """
// Four 8 x 8 matrices of 16-bit values{what}; lane i says where row i % 8 of matrix i / 8 lies.
DEVICE void {name}(unsigned (&x)[4], unsigned from) {{
  asm volatile("ldmatrix.sync.aligned.m8n8.x4{suffix}.shared.b16 {{%0, %1, %2, %3}}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(from)
               : "memory");
}}
"""

WARP_FUNCTIONS: dict[str, str] = {
    "unit_at": """
// Bytes from the start of a panel to a unit of a row.
template <int U>
DEVICE unsigned unit_at(int row, int unit) { return row * (16 * U) + (unit ^ row / (8 / U) % U) * 16; }
""",
    "copy_unit": """
// Starts to bring 16 bytes.
DEVICE void copy_unit(unsigned to, const unsigned short* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
""",
    "copy_live_unit": """
// The same, or zeros without reading where it is not live.
DEVICE void copy_live_unit(unsigned to, const unsigned short* from, bool live) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(live ? 16 : 0) : "memory");
}
""",
    "copies_commit": """
DEVICE void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
""",
    "copies_pending": """
// Until all but the N youngest copies of every lane of the warp are done.
template <int N>
DEVICE void copies_pending() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
  __syncwarp();
}
""",
    "load_matrices": _LOAD.format(name="load_matrices", suffix="", what=""),
    "load_transposed": _LOAD.format(name="load_transposed", suffix=".trans", what=", transposed"),
    "mma_bf16": _PRODUCT.format(dtype="bf16"),
    "mma_f16": _PRODUCT.format(dtype="f16"),
}
