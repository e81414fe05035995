"""Pictures of day 2. Each function draws one figure and returns it.

llama   The nano Llama: its parts, what a token sees, how a token is drawn.
floors  The floors of serving: which has the time of a step, and to which a cause belongs.
lanes   Ranks, a lane each: what they do when.
laws    Losses by size: recorded runs, laws, and what a budget buys.
"""

from day02_overview.pictures.floors import decisions, floors_by_step
from day02_overview.pictures.lanes import timelines
from day02_overview.pictures.laws import laws, valleys
from day02_overview.pictures.llama import draw_line, heads, llama_map, visible_tokens

__all__ = ["decisions", "draw_line", "floors_by_step", "heads", "laws", "llama_map", "timelines",
           "valleys", "visible_tokens"]
