"""Twins: small models that differ in one part and are trained alike, so that the part is compared.

model  A decoder whose parts are exchanged: attention, MLP, experts.
train  Train one variant, and write its folder and its row of runs/.
"""
