"""Processes that compute prompts and processes that write answers, round the exercises of s12.

parts     what travels: one page of one layer
timeline  two machines on paper, sharing all work or splitting it
sides     an engine that computes prompts and sends their pages, one that takes them and writes
router    which worker gets a request, and what happens when one dies
faults    both sides in one process, and a wire that misbehaves
wires     parts over TCP
workers   both kinds as processes: what runs in each
fleet     the router's process: it starts workers, and those again that end
"""
