"""The given half of reinforcement learning: roles, their loop, where they sit, what moves.

The command is `python -m layer3_system.rl`.

roles   Rollout writes answers, Actor learns from them, a reward is a program
loop    Learning: the controller, a step of which reads like the algorithm; the gap
layout  which part of a matrix each rank has, in training and in serving
split   the roles on ranks of their own, and what travels between them
lanes   two placements of the roles on ranks, in numbers alone
"""
