"""Pictures of an engine at work, and those that lessons open with.
Each draws one figure.

recorded  Notes of a Recorder: pages held, requests in steps.
shares    Shares of tokens: what a sampler keeps, where a number falls; the way of a request.
chase     A request's life, and its number of computed tokens after that of its tokens.
clients   Clients: a call's way through the server, and how long requests wait.
ranks     Ranks: which sends how many bytes to which, and which does what when.
training  Training: what each rank keeps of a parameter, and buckets that are summed in backward.
tensors   Matrices in bands, and a cache on several ranks.
pipeline  Pipelines: which stage does what when, and how much it keeps.
context   Context parallelism: which rank computes which pairs, when, and what it sends.
loop      The loop of an engine: its calls, and what overlap hides.
experts   Expert parallelism: which rows travel, whose experts are busy, what two ways send.
learning  A training: losses, rate and norm by step, and gradients beside the range of fp16.
speculation  Guesses: which held, and how much they speed up a step.
grammar   Grammars: where texts stop to match, and how few tokens may come.
tiers     A memory below: tokens computed by its size, and seconds to load or compute.
failures  Failures: a month as a band, what intervals lose, disks after a stop.
plans     Plans: what each kind of parallelism does to a token, and plans by bytes and seconds.
disaggregation  Prompts and answers apart: token times, layers on the wire, goodput.
answers   Learning from own answers: rewards and gaps by update, placements, a plan's pieces.
pages     Pages: tables that name them, their own names, a tree of them, what hits save.
steps     Steps: batches, seats, and the arrays of one step.
chunks    Chunks of a prompt: in steps, and what their size gains and costs.
"""

from layer3_system.pictures.answers import (
    answer_grid,
    gap_curves,
    placement_lanes,
    plan_grid,
    reward_curves,
)
from layer3_system.pictures.chase import request_life
from layer3_system.pictures.chunks import chunk_steps, sweep_curves
from layer3_system.pictures.clients import call_life, stalled, waits
from layer3_system.pictures.context import causal_bands, context_bytes, position_errors, ring_work
from layer3_system.pictures.disaggregation import goodput_panels, token_ticks, wire_lanes
from layer3_system.pictures.experts import expert_loads, row_matrix, rows_by_k
from layer3_system.pictures.failures import disk_outcomes, interval_curve, month_bands
from layer3_system.pictures.grammar import allowed_steps, automaton_jumps, match_lines
from layer3_system.pictures.learning import gradient_range, loss_curves, training_lines
from layer3_system.pictures.loop import overlap_lanes, step_circle
from layer3_system.pictures.pages import cost_sweep, hash_chain, node_cut, table_arrows
from layer3_system.pictures.pipeline import kept_lines, pipeline_lanes
from layer3_system.pictures.plans import (
    kind_grid,
    measured_plans,
    plan_cloud,
    serving_lines,
    step_bars,
)
from layer3_system.pictures.ranks import rank_lanes, rank_matrix, ring_and_tree, ring_rounds
from layer3_system.pictures.recorded import block_map, step_timeline
from layer3_system.pictures.shares import kept_shares, request_loop, share_line
from layer3_system.pictures.speculation import byte_bars, guess_ribbons, speedup_curves
from layer3_system.pictures.steps import padded_batch, seat_bars, seat_lanes, step_arrays
from layer3_system.pictures.tensors import cache_by_ranks, split_bands
from layer3_system.pictures.tiers import load_lines, tier_bars, tier_curves
from layer3_system.pictures.training import bucket_lanes, stage_bars, state_copies

__all__ = ["allowed_steps", "answer_grid", "automaton_jumps", "block_map", "bucket_lanes",
           "byte_bars", "cache_by_ranks", "call_life", "causal_bands", "chunk_steps",
           "context_bytes", "cost_sweep", "disk_outcomes", "expert_loads", "gap_curves",
           "goodput_panels", "gradient_range", "guess_ribbons", "hash_chain", "interval_curve",
           "kept_lines", "kept_shares", "kind_grid", "load_lines", "loss_curves", "match_lines",
           "measured_plans", "month_bands", "node_cut", "overlap_lanes", "padded_batch",
           "pipeline_lanes", "placement_lanes", "plan_cloud", "plan_grid", "position_errors",
           "rank_lanes", "rank_matrix", "request_life", "request_loop", "reward_curves",
           "ring_and_tree", "ring_rounds", "ring_work", "row_matrix", "rows_by_k", "seat_bars",
           "seat_lanes", "serving_lines", "share_line", "speedup_curves", "split_bands",
           "stage_bars", "stalled", "state_copies", "step_arrays", "step_bars", "step_circle",
           "step_timeline", "sweep_curves", "table_arrows", "tier_bars", "tier_curves",
           "token_ticks", "training_lines", "waits", "wire_lanes"]
