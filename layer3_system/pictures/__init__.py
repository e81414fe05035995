"""Pictures of an engine at work, and those that lessons open with. Each draws one figure.

recorded  Notes of a Recorder: pages held, requests in steps.
shares    Shares of tokens: what a sampler keeps.
pages     Pages: tables that name them, and their own names.
steps     Steps: batches, chunks, and the arrays of one step.
clients   Clients: a call's way through the server, and how long requests wait.
pipeline  Pipelines: which stage does what when, and how much it keeps.
"""

from layer3_system.pictures.clients import call_life, waits
from layer3_system.pictures.pages import hash_chain, table_arrows
from layer3_system.pictures.pipeline import kept_lines, pipeline_lanes
from layer3_system.pictures.recorded import block_map, step_timeline
from layer3_system.pictures.shares import kept_shares
from layer3_system.pictures.steps import chunk_steps, padded_batch, seat_lanes, step_arrays

__all__ = ["block_map", "call_life", "chunk_steps", "hash_chain", "kept_lines", "kept_shares",
           "padded_batch", "pipeline_lanes", "seat_lanes", "step_arrays", "step_timeline",
           "table_arrows", "waits"]
