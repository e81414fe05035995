"""Processes that compute prompts and processes that write answers, round the exercises of s12.

parts     what travels: one page of one layer
timeline  two machines on paper, sharing all work or splitting it
"""
