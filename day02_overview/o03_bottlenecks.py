"""o03 · Where does the bottleneck live?
From a timeline to a floor, a cause and a remedy

A profile lists what each rank (a device and its host) did in `wall` seconds, as spans
(`profiles.Span`).
Are the devices busy?
If not, what do they wait for?
If so, how far are they from their roof, and which bytes do they move?
"""

from day02_overview.profiles import CAUSES, last_arrivals, pieces

__all__ = ["BUSY", "FAR", "REMEDIES", "WHATS", "busy_share", "diagnose", "least_seconds",
           "most_gain", "timeline", "where_time_goes"]

WHATS = ("busy", "input", "host", "rank", "wire")
BUSY = 2 / 3            # share of the time; below it, the devices wait too much
FAR = 1 / 3             # share of the roof; a kernel below it could be three times as fast
REMEDIES = {
    "starved": "load the next batches while this one is computed",
    "launch-bound": "fewer launches (g05), or all as one: a CUDA graph (g06)",
    "unfused": "fuse kernels, so that the data between them stays on the chip (g05)",
    "unbatched": "more rows a step for the same weights (s04), or smaller weights (g07)",
    "imbalanced": "divide the work again, by its cost (s24)",
    "communication-bound": "send less, use faster wires, or send while computing (s21, s22)",
    "far from its roof": "a better kernel: coalescing, tiles, tensor cores (k02, k05, k12)",
    "at its roof": "another algorithm, smaller numbers (k15), or a larger machine",
}


def busy_share(profile):
    """The share of all ranks' time in which at least one kernel runs, 0 to 1.

    Where two kernels of a rank overlap (two streams), the time counts once.
    """
    # exercise: for each rank, its kernels in order of start; add the time that is not covered yet
    busy = 0.0
    for rank in range(profile.ranks):
        covered = 0.0
        for s in sorted(profile.spans, key=lambda s: s.start):
            if s.rank == rank and s.kind == "kernel":
                busy += max(0.0, s.end - max(s.start, covered))
                covered = max(covered, s.end)
    return busy / (profile.ranks * profile.wall)


def timeline(profile):
    """A list per rank of (start, end, what), without gaps from 0 to wall.

    `what` is the first of these that holds:
    busy: a kernel runs     input: the rank waits for its batch
    rank: it is in a collective that the last rank has not entered yet
    wire: it is in a collective that all ranks have entered     host: none of these
    """
    last = last_arrivals(profile)
    # exercise: choose `what` for each of pieces(profile, rank); `last` separates rank from wire
    lanes = []
    for rank in range(profile.ranks):
        lanes.append([])
        for start, end, running in pieces(profile, rank):
            what = "host"
            if "kernel" in running:
                what = "busy"
            elif "input" in running:
                what = "input"
            elif "collective" in running:
                what = "rank" if start < last[running["collective"].name] else "wire"
            lanes[rank].append((start, end, what))
    return lanes


def where_time_goes(profile):
    """{what: seconds summed over the ranks}, for each of WHATS.
    They add up to ranks · wall."""
    seconds = dict.fromkeys(WHATS, 0.0)
    for lane in timeline(profile):
        for start, end, what in lane:
            seconds[what] += end - start
    return seconds


def least_seconds(span, peak, bandwidth):
    """The seconds that a kernel would take at its roof.

    span: has flops and moved (bytes)    peak: FLOP/s    bandwidth: byte/s
    """
    # exercise: the arithmetic takes some time and so do the bytes; which of the two decides?
    return max(span.flops / peak, span.moved / bandwidth)


def diagnose(profile):
    """(floor, cause), with the floor from CAUSES.
    The first rule that holds:

    1. The ranks are busy for less than BUSY of their time: the cause of the largest loss (input:
       starved, host: launch-bound, rank: imbalanced, wire: communication-bound).
       In a tie, the first in WHATS.
       Time without any span counts as host.
    2. The sum of the kernels' least seconds is below FAR of the busy seconds: far from its roof.
    3. At the roofs, all kernels' bytes together take longer than all their FLOPs, and at least half
       of these bytes are weights (unbatched) or lie between kernels (unfused).
       If both, the larger; in a tie, unbatched.
    4. Otherwise: at its roof.
    """
    seconds = where_time_goes(profile)
    kernels = [s for s in profile.spans if s.kind == "kernel"]
    # exercise: the rules in this order, from `seconds`, least_seconds and sums over `kernels`
    flops = sum(s.flops for s in kernels)
    moved = sum(s.moved for s in kernels)
    weights = sum(s.weights for s in kernels)
    between = sum(s.between for s in kernels)
    least = sum(least_seconds(s, profile.peak, profile.bandwidth) for s in kernels)
    cause = "at its roof"
    if seconds["busy"] < BUSY * profile.ranks * profile.wall:
        cause = {"input": "starved", "host": "launch-bound", "rank": "imbalanced",
                 "wire": "communication-bound"}[max(WHATS[1:], key=seconds.get)]
    elif least < FAR * seconds["busy"]:
        cause = "far from its roof"
    elif moved / profile.bandwidth > flops / profile.peak and max(weights, between) >= moved / 2:
        cause = "unbatched" if weights >= between else "unfused"
    return CAUSES[cause], cause


def most_gain(profile, what):
    """How many times as fast the job is, at most, if no time is lost to `what`, one of WHATS[1:].

    Subtract the loss from the sum over all ranks; the ranks then share the rest evenly. (Amdahl
    1967)
    """
    # exercise: all ranks' time, divided by what is left of it
    whole = profile.ranks * profile.wall
    return whole / (whole - where_time_goes(profile)[what])


# ---- a prediction and choices


def predict_gain_of_a_loader():
    """A step waits 75 ms for its batch, then computes for 25 ms.
    Now a second process loads the next batch while this one is computed; loading is as slow as
    before.
    How many times as fast?"""
    # exercise: how long is a step if both happen at the same time?
    return (75 + 25) / max(75, 25)


def choose_remedies():
    """A string of six letters, one for each case.
    Which remedy would you try first?

    1  A model of 135M parameters decodes for one user, who wants tokens sooner. nvidia-smi: 100 %.
       Bandwidth: 8 % of the roof.
       Each kernel takes 3 µs, and one starts every 12 µs.
       a  more users a step     b  a CUDA graph     c  weights in 4 bits
    2  Training. nvidia-smi: 100 %, MFU: 30 %. No gaps between kernels.
       For 35 % of the time matmuls run at 85 % of the peak.
       The rest goes to norms, activations and masks, at 80 % of the bandwidth.
       a  more loader processes     b  twice the batch     c  fuse everything that is not a matmul
    3  A mixture of experts on 8 ranks.
       In each step, seven ranks spend 4 ms in all_to_all and one spends 0.3 ms.
       That one computes for 5 ms, the others for 1.3 ms.
       a  a second copy of its busiest expert on another rank     b  a faster network
       c  a faster matmul
    4  A server with a good TTFT (time to the first token).
       Whenever a prompt of 30,000 tokens comes, all running replies stop for 0.8 s.
       a  process the prompt in chunks, together with decoding
       b  let the prompt wait until the replies are finished     c  a larger KV cache
    5  Replies have 10 to 1,000 tokens. 32 requests start together; the next 32 start when all are
       finished.
       At the end of each round, only two or three are left.
       a  64 requests a round     b  a CUDA graph     c  admit a new request as soon as one finishes
    6  Decoding with each matrix split over 8 GPUs (TP = 8), four in each of two machines.
       all_reduce takes 60 % of a step, and all ranks enter it at the same time.
       a  16 GPUs     b  TP = 4 inside each machine; each machine serves its own requests
       c  move the experts to other ranks
    """
    # exercise: what waits for what? Which answer removes exactly that?
    return "bcaacb"
