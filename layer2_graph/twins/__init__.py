"""Twins: small models that differ in one part and are trained alike, so that the part is compared.

model  A decoder whose parts are exchanged: attention, MLP, experts.
linear  A mixer with a state in place of attention, and the variants that have it.
train  Train one variant, and write its folder and its row of runs/.
recall  How many pairs of key and value a memory can tell apart.
"""
