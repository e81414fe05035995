"""Pictures of day 2. Each function draws one figure and returns it.

llama   The nano Llama: its parts, what a token sees, how a token is drawn.
floors  The floors of serving: which has the time of a step, and to which a cause belongs.
lanes   Ranks, a lane each: what they do when.
laws    Losses by size: recorded runs, laws, their errors, and what a budget buys.
plans   Plans of a training: depth and parameters, GPUs and slices, a step in bars.
training  Training: what one GPU keeps over a step, and how a sum goes around a ring.
"""

from day02_overview.pictures.floors import building, decisions, floors_by_step
from day02_overview.pictures.lanes import timelines
from day02_overview.pictures.laws import bent_cost, law_errors, laws, valleys
from day02_overview.pictures.llama import draw_line, heads, llama_map, visible_tokens
from day02_overview.pictures.plans import depth_line, gpu_grid, plan_bars
from day02_overview.pictures.training import memory_of_step, ring_rounds

__all__ = ["bent_cost", "building", "decisions", "depth_line", "draw_line", "floors_by_step",
           "gpu_grid", "heads", "law_errors", "laws", "llama_map", "memory_of_step", "plan_bars",
           "ring_rounds", "timelines", "valleys", "visible_tokens"]
