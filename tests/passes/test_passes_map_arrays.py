"""What the simulator sees of a block map is what a block computes line by line."""

import pass_kit as kit
import pytest
from feature_specs import CAUSAL, kernel
from map_kit import blocks_of

from tilec.passes.map_blocks import BlockMap, map_blocks
from tilec.tune.blocks import plain, taken

PROGRAM = kit.program(kernel(CAUSAL, h="h : H", head="h // 2"), stage="choose_tiles")
MAPS = [
    BlockMap(),
    BlockMap("block_first", 8),
    BlockMap("longest_first", 8, chunk=2, span=50),
    BlockMap("longest_first", window=3),
    BlockMap("block_first", 8, fold=True, chunk=2),
    BlockMap(units=7),
    BlockMap("longest_first", 8, units=16),
]


@pytest.mark.parametrize("m", MAPS, ids=lambda m: m.name)
@pytest.mark.parametrize(
    "sizes", [{"B": 2, "H": 12, "M": 170, "N": 40}, {"B": 1, "H": 2, "M": 1, "N": 1}, {"B": 0, "H": 2, "M": 9, "N": 1}]
)
def test_all_blocks_at_once(m, sizes):
    p = map_blocks(PROGRAM, m)
    found = taken(p, sizes)
    names = [n for n, _ in p.grid.coords]
    one_by_one = blocks_of(p, sizes)
    assert found.ctas == len(one_by_one)
    tiles = list(zip(found.block.tolist(), *(found.at[n].tolist() for n in names), strict=True))
    assert tiles == [(b, *tile) for b, mine in enumerate(one_by_one) for tile in mine]


def test_a_map_without_a_kernel():
    found = taken(plain(BlockMap(xcds=8, chunk=1)), {"R": 3, "H": 8})
    assert found.at["head"].tolist() == list(range(8)) * 3
    assert found.at["row"].tolist() == [r for r in range(3) for _ in range(8)]
    with pytest.raises(KeyError):
        taken(plain(BlockMap()), {"R": 3})
