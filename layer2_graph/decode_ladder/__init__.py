"""The rungs of one decode step, side by side: python -m layer2_graph.decode_ladder.

ladder        the rungs
decoders      our models as decoders that are timed
hugging_face  Hugging Face's generate as one
inductor      torch.compile as one
comparison    all of them measured, and the command
report        the table and the graphs
"""
