"""An engine on several ranks: rank 0 has scheduler, pool and sampler, the others follow it.

leader  rank 0's model and pages, which do on all ranks what is asked of them; the other ranks' loop
plan    what every rank is told at its start, and the part of the model that it makes of it
team    the processes of the other ranks: started, watched, ended
worker  the program of such a process
"""
