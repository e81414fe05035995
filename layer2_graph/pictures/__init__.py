"""Pictures of the graph.
Each function draws one figure and returns it.

rows      Rows: whose they are, which are computed again, which matrices make them.
merging   Matrices: which of their numbers a factor scales, what moved brackets compute.
launches  Launches: how many there are, what asks for them, where their results lie.
codes     Codes: how numbers become levels, what sets their scales, where they are kept.
experts   Experts: which token chooses which, how even their work is, how many a step reads.
grids     Grids: what rounding to them costs, and what training makes of it.
timeline  Instructions: when each of them runs, and on which multiprocessor.
curves    Curves and bars: wavelengths, sizes of graphs, what bits cost.
sparsity  Sparsity: which zeros cost what, which patterns they make, which pages a head needs.
attention  Attention: what a token and layer keep, and what keeping less costs.
compilers  Compilers: what they made of a layer, and which calls they compiled for.
states    States: what a request holds, a state as a matrix, how many pairs it tells apart.
levels    Levels: formats on a line, a group's error by its scale, inputs that go together.
"""

from layer2_graph.pictures.attention import against_window, kept_numbers, quality, visible
from layer2_graph.pictures.codes import (
    channel_bars,
    largest_of_tokens,
    rounded,
    scales_of_a_product,
    slots_of_tokens,
)
from layer2_graph.pictures.compilers import compiled, recompiled
from layer2_graph.pictures.curves import by_bits, padding, waves
from layer2_graph.pictures.experts import learning, loaded_share, routes
from layer2_graph.pictures.grids import heaps, recovery, valley
from layer2_graph.pictures.launches import arenas, host_and_device, residuals, strips, traffic
from layer2_graph.pictures.levels import error_by_share, inputs_together, level_lines
from layer2_graph.pictures.merging import brackets, factors
from layer2_graph.pictures.rows import (
    cache_rows,
    padded_rows,
    ragged,
    runs_of_cache,
    stacked,
    steps,
)
from layer2_graph.pictures.sparsity import bounds, contexts, zeros
from layer2_graph.pictures.states import held_bytes, mixing, recall
from layer2_graph.pictures.timeline import by_blocks, timelines

__all__ = ["against_window", "arenas", "bounds", "brackets", "by_bits", "by_blocks", "cache_rows",
           "channel_bars", "compiled", "contexts", "error_by_share", "factors", "heaps",
           "held_bytes", "host_and_device", "inputs_together", "kept_numbers", "largest_of_tokens",
           "learning", "level_lines", "loaded_share", "mixing", "padded_rows", "padding",
           "quality", "ragged", "recall", "recompiled", "recovery", "residuals", "rounded",
           "routes", "runs_of_cache", "scales_of_a_product", "slots_of_tokens", "stacked", "steps",
           "strips", "timelines", "traffic", "valley", "visible", "waves", "zeros"]
