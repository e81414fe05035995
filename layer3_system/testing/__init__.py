"""Stand-ins for parts of the engine, in tests and lessons.

mock_llama         a model whose every score can be worked out
scheduler_driver   a scheduler driven with numbers, without a model
mock_bridge        a Bridge driven by hand
collective_driver  given code round the exercises of s20
training_driver    what the ranks of s21 are asked to run, round its exercises
training_models    models that they train, and batches
training_stages    a step of training at each stage of ZeRO
tensor_driver      what the ranks of s22 are asked to run
speculation_driver  a request just after a step with guesses
pipeline_ranks     given code round the exercises of s23
pipeline_llama     a small Llama cut in stages, for a training step of s23
expert_ranks       given code round the exercises of s24, a layer by experts and by tensors, a Llama
tier_driver        a pool between two memories that hold names, for s11
grammar_driver     a matcher of the texts of a list, for s13
context_ranks      given code round the exercises of s25, gradients, a Llama
plan_ranks         a training step of one Llama by plans of s26, round the exercises of s21 to s25
repeated_ranks     a lesson's program again and again, until its ranks are ended from outside
step_driver        given code round the exercises of s30
transfer_driver    parts that arrive and pages to give back, for s12
crash_disk         every disk that a crash could leave, for s31
recovery_driver    given code round the other exercises of s31
reshard_ranks      what the ranks of s32 are asked to run: plans, and a Llama that moves
split_ranks        what they are asked to run of the split placement
"""
