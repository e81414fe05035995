"""When something happened, and which lane did it, in one number.

A stamp is `step << 32 | who`, and `who` is `block << 12 | warp << 6 | lane`, with blocks numbered
from 0 among those checked.
Stamps compare as numbers: the greater one is younger.
"""

from .lanes import WARP

WHO_BITS = 32
BLOCK_SHIFT = 12
WARP_SHIFT = 6
WHO = (1 << WHO_BITS) - 1
LANE = (1 << WARP_SHIFT) - 1
IN_BLOCK = (1 << BLOCK_SHIFT) - 1
SEVERAL_LANES, ATOMIC = 32, 33          # in place of a lane
SEVERAL_WARPS = IN_BLOCK                # in place of a warp and lane
SEVERAL_BLOCKS = WHO                    # in place of all three
MOST_BLOCKS = (1 << WHO_BITS - BLOCK_SHIFT) - 1
BARRIERS = 16
MEETINGS = BARRIERS + WARP              # at named barriers, and of tiles by their first warp
