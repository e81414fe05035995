"""Pictures of the kernels.
Each function draws one figure and returns it.

threads  Threads and what each takes: grids, programs, loads, rounds of a reduction.
banks    Shared memory: in which bank each number of a small tile lies.
tiles    Matrices cut into tiles: which are read, which are written, in what order.
rows     Rows: what a kernel reads, keeps and writes of one, and what sizes cost.
pages    Pages of a cache: whose they are, how a token is looked up, which program takes which keys.
angles   Rotary positions: pairs of numbers that turn with the position.
chip     What crosses between memory and the chip, and what stays on the chip.
registers    Which thread holds which numbers in registers, and which bits of a byte are whose.
experts      Experts: how many slots each has, and whose tiles a program makes.
pipelines    What is copied while something else is multiplied, and where pieces of a row lie.
precision    Precision: which numbers share a scale, and what errors become.
fragments    Tensor cores: one step of a warp's product, and the quarters of a block's tile.
gates    SwiGLU: its curve, gate and up in memory, and the tiles of one program.
losses    A row of logits: its probabilities, the m and s of its blocks, and its gradient.
groups    Quantised weights: the integers of a group, and the parts of a GEMV's step.
attention    Attention: its arrays to scale, and what a query keeps on its walk along the keys.
"""

from layer1_kernels.pictures.angles import turns
from layer1_kernels.pictures.attention import attention_arrays, tile_walk
from layer1_kernels.pictures.banks import small_banks
from layer1_kernels.pictures.chip import attention_tile, crossings, residual_stream
from layer1_kernels.pictures.experts import loads, tile_lists
from layer1_kernels.pictures.fragments import mma_step, warp_quarters
from layer1_kernels.pictures.gates import gated_tiles, halves, silu_curve
from layer1_kernels.pictures.groups import gemv_step, scale_steps
from layer1_kernels.pictures.losses import row_before_and_after, row_in_blocks, token_loss
from layer1_kernels.pictures.pages import attention_programs, page_lookup, page_map
from layer1_kernels.pictures.pipelines import bank_groups, overlap
from layer1_kernels.pictures.precision import errors, scale_groups
from layer1_kernels.pictures.registers import (
    fragment,
    head_tile,
    owners,
    packed_row,
    register_cliff,
)
from layer1_kernels.pictures.rows import (
    falling,
    launches,
    masked_row,
    passes,
    rescaled,
    row_by_threads,
    row_program,
    running,
)
from layer1_kernels.pictures.threads import (
    butterfly,
    grid,
    lanes,
    masked,
    one_round,
    rounds,
    shuffle,
    strides,
    tree,
    two_passes,
)
from layer1_kernels.pictures.tiles import (
    operands,
    thread_tiles,
    tile_map,
    tile_numbers,
    tile_orders,
    tile_walks,
    turned,
    warp_tiles,
)

__all__ = ["attention_arrays", "attention_programs", "attention_tile", "bank_groups", "butterfly",
           "crossings", "errors", "falling", "fragment", "gated_tiles", "gemv_step", "grid",
           "halves", "head_tile", "lanes", "launches", "loads", "masked", "masked_row", "mma_step",
           "one_round", "operands", "overlap", "owners", "packed_row", "page_lookup", "page_map",
           "passes", "register_cliff", "rescaled", "residual_stream", "rounds",
           "row_before_and_after", "row_by_threads", "row_in_blocks", "row_program", "running",
           "scale_groups", "scale_steps", "shuffle", "silu_curve", "small_banks", "strides",
           "thread_tiles", "tile_lists", "tile_map", "tile_numbers", "tile_orders", "tile_walk",
           "tile_walks", "token_loss", "tree", "turned", "turns", "two_passes", "warp_quarters",
           "warp_tiles"]
