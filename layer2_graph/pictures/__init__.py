"""Pictures of the graph. Each function draws one figure and returns it.

rows      Rows: whose they are, which are computed again, which matrices make them.
launches  Launches: how many there are, who asks for them, where their results lie.
codes     Codes: how numbers become levels, and what sets their scales.
experts   Experts: who chooses which, how even their work is, how many a step reads.
curves    Curves and bars: wavelengths, sizes of graphs, what bits cost.
states    States: what a request holds, a state as a matrix, how many pairs it tells apart.
"""

from layer2_graph.pictures.codes import largest_of_tokens, rounded
from layer2_graph.pictures.curves import by_bits, padding, waves
from layer2_graph.pictures.experts import learning, loaded_share, routes
from layer2_graph.pictures.launches import arenas, host_and_device, strips
from layer2_graph.pictures.rows import ragged, stacked, steps
from layer2_graph.pictures.states import held_bytes, mixing, recall

__all__ = ["arenas", "by_bits", "held_bytes", "host_and_device", "largest_of_tokens", "learning",
           "loaded_share", "mixing", "padding", "ragged", "recall", "rounded", "routes", "stacked",
           "steps", "strips", "waves"]
