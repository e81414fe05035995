"""Twins: small models that differ in one part and are trained alike, so that the part is compared.

model  A decoder whose parts are exchanged: attention, MLP, experts.
attention  Attention that remembers less, and the twins that have it.
uptrain  Train the dense twin a little after its key and value heads were made fewer.
linear  A mixer with a state in place of attention, and the variants that have it.
train  Train one variant, and write its folder and its row of runs/.
recall  How many pairs of key and value a memory can tell apart.
"""
