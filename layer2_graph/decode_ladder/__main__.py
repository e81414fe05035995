"""`python -m layer2_graph.decode_ladder`, see comparison.py."""

import sys

from layer2_graph.decode_ladder.comparison import main

sys.exit(main())
