"""The given half of a training: text, model, loop.
The command is layer3_system/train.py.

data    Loader: batch i of a text depends on a seed and i alone
llama   TrainableLlama: scores and losses on a table of kernels, with gradients
arms    Arm: which numbers of a training are rounded to 16 bits
loop    Training: steps, and what is kept to go on with them
run     TrainingRun, ShardedRun: a small training with dropout, in one process or on all ranks
group   Group: the ranks, as a checkpoint sees them
resume  what a training goes on from, for any number of ranks, and faults in words
failures  a month of a job whose machines fail, in numbers alone
"""
