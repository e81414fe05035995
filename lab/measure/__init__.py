"""What was measured on GPUs, and how tables show it.

bench    `lab bench`: shares of the roofs and ratios, of one run
records  benchmarks/<device>.json: the machine, the sources, the results
tables   those records as tables, for lessons and the README
cards    what the pages of records on a CPU share
ladder   a ladder of kernels as text
targets  targets of records on a CPU
turns    benches prepare beside each other, and measure one at a time
"""
