"""Measurements and records of this floor.

s10_speculative  how often guesses hold, and what they gain
s12_disaggregation  prompts and answers apart: kills, parts, goodput
s11_kv_offload  what a memory below saves in conversations
mask_cost      what a pattern costs the steps of eight answers
s20_collectives  ring, tree and single messages: time against bytes
load           `lab load`: requests at a rate
serving_speed  the engine beside Hugging Face's
serving_card   its record as a table
chunk_sizes    chunk sizes against throughput and gaps
soak           random steps on an engine
soak_schemas   answers to random JSON schemas
conversation   OpenAI's client talks to `lab serve`
screenshot     a picture of the live page
tensor_parallel  sums in pieces, beside DTensor
data_parallel  stages of ZeRO beside PyTorch's FSDP, and gradients of few bits
s23_pipeline_parallel  schedules on ranks that sleep
expert_parallel  a layer with experts on several ranks, by experts and by tensors
context_parallel  one sequence on several ranks, by the ring and by Ulysses
counted_bytes  what ranks sent, counted, beside what the lessons derive
s26_planner    plans in the order of their predicted seconds, beside measured ones
timing         how long ranks take together
training_curves  losses of a tiny Llama in five kinds of arithmetic
rl             rewards by update: seeds, and answers that are old
kills          a training that is killed again and again, beside one that never was
stall          how long a save stops training
training_speed  steps of s30 beside a plain loop of PyTorch
"""
