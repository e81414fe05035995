"""o03 · Where does the bottleneck live? From a timeline to a floor, a cause and a remedy

A profile records what each of its ranks, a device with its host, did in `wall` seconds: spans
(`profiles.Span`). Two questions decide. Are the devices at work? If not, what do they wait for? If
they are, how far from their roof, and which bytes keep them busy?
"""

from day02_overview.profiles import CAUSES, last_arrivals, pieces

__all__ = ["BUSY", "FAR", "REMEDIES", "WHATS", "busy_share", "diagnose", "least_seconds",
           "most_gain", "timeline", "where_time_goes"]

WHATS = ("busy", "input", "host", "rank", "wire")
BUSY = 2 / 3            # devices that work less of the time than this wait too much
FAR = 1 / 3             # of its roof: a kernel below this could be three times as fast
REMEDIES = {
    "starved": "load the next batches while this one is computed",
    "launch-bound": "fewer launches (g05), or all as one: a CUDA graph (g06)",
    "unfused": "merge kernels, so that what is between them stays on the chip (g05)",
    "unbatched": "more rows a step for the same weights (s04), or smaller weights (g07)",
    "imbalanced": "share the work out again, by what it costs (s24)",
    "communication-bound": "send less, over faster wires, or while computing (s21, s22)",
    "far from its roof": "a better kernel: coalescing, tiles, tensor cores (k02, k05, k12)",
    "at its roof": "another algorithm, smaller numbers (k15), or a larger machine",
}


def busy_share(profile):
    """The share of all devices' time in which a kernel runs, 0 to 1.

    Two kernels may run at once, on two streams of a device: that time counts once.
    """
    # exercise: for each rank, its kernels in order of start; add what is not covered so far
    busy = 0.0
    for rank in range(profile.ranks):
        covered = 0.0
        for s in sorted(profile.spans, key=lambda s: s.start):
            if s.rank == rank and s.kind == "kernel":
                busy += max(0.0, s.end - max(s.start, covered))
                covered = max(covered, s.end)
    return busy / (profile.ranks * profile.wall)


def timeline(profile):
    """[[(start, end, what), …] of each rank], from 0 to wall; what is one of WHATS:

    busy: a kernel runs, whatever else there is     input: no kernel runs; the rank awaits its batch
    rank: in a collective that the last rank has not reached yet    wire: in it, from then on
    host: none of these
    """
    # exercise: a `what` for each of pieces(profile, rank); last_arrivals(profile) gives the rest
    last = last_arrivals(profile)
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
    """{what: seconds, added up over the ranks} for each of WHATS; together, ranks · wall."""
    seconds = dict.fromkeys(WHATS, 0.0)
    for lane in timeline(profile):
        for start, end, what in lane:
            seconds[what] += end - start
    return seconds


def least_seconds(span, peak, bandwidth):
    """Seconds that a kernel needs at its roof. span: with flops and moved (bytes)

    peak: FLOP/s    bandwidth: byte/s
    """
    # exercise: its arithmetic needs some time, its bytes need some; which of the two decides?
    return max(span.flops / peak, span.moved / bandwidth)


def diagnose(profile):
    """(floor, cause), as in CAUSES. The first that holds:

    - Busy for less than BUSY of all ranks' time: the cause to which most of that time is lost; of
      equals, the first in WHATS.
    - The kernels' least seconds, added up, are less than FAR of the busy time: far from its roof.
    - The bytes of all kernels take longer than their FLOPs, at the roofs, and at least half of the
      bytes are weights: unbatched; or between kernels: unfused.
    - Else: at its roof.
    """
    # exercise: in this order; where_time_goes, least_seconds and sums over the kernels
    seconds = where_time_goes(profile)
    kernels = [s for s in profile.spans if s.kind == "kernel"]
    flops, moved, weights, between = (sum(s[i] for s in kernels) for i in range(5, 9))
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
    """The largest speedup if no time were lost to `what`, one of WHATS[1:].

    That time leaves the sum over all ranks; the rest is shared out evenly. (Amdahl 1967)
    """
    # exercise: all ranks' time, over what is left of it
    whole = profile.ranks * profile.wall
    return whole / (whole - where_time_goes(profile)[what])


# ---- a prediction and choices


def predict_gain_of_a_loader():
    """A step waits 75 ms for its batch, then computes for 25 ms. Now a second process loads the
    next batch while this one is computed; loading is as slow as before. How many times as fast?"""
    # exercise: how long is a step, once both go on at the same time?
    return (75 + 25) / max(75, 25)


def choose_remedies():
    """A letter for each of the six, as one text: the remedy to try first.

    1  A model of 135M decodes for one user, who wants tokens sooner. nvidia-smi: 100 %. Bandwidth:
       8 % of the roof. A kernel takes 3 µs, and every 12 µs one begins.
       a  more users a step     b  a CUDA graph     c  weights in 4 bits
    2  Training. nvidia-smi: 100 %, MFU: 30 %. No gaps. Matmuls reach 85 % of the peak in 35 % of
       the time; norms, activations and masks take the rest, at 80 % of the bandwidth.
       a  more loader processes     b  twice the batch     c  merge all but the matmuls
    3  A mixture of experts on 8 ranks. Seven spend 4 ms of a step in all_to_all, one 0.3 ms. That
       one computes 5 ms, the others 1.3 ms.
       a  a copy of its busiest expert elsewhere     b  a faster network     c  a faster matmul
    4  A server with a good TTFT (time to the first token). Whenever a prompt of 30,000 tokens
       comes, all running replies stop for 0.8 s.
       a  the prompt in chunks, beside decode     b  the prompt waits until the replies are done
       c  a larger KV cache
    5  Replies have 10 to 1,000 tokens. 32 requests start together, and the next 32 when all are
       done. At the end of each round, the GPU works for two or three.
       a  64 requests a round     b  a CUDA graph     c  a new request as soon as one is done
    6  Decode with every matrix cut over 8 GPUs (TP = 8) in two machines. all_reduce takes 60 % of
       a step, and all ranks come to it at the same time.
       a  16 GPUs     b  TP = 4 inside each machine, which serves its own requests
       c  experts on other GPUs
    """
    # exercise: who waits for what? Then: which answer removes just that?
    return "bcaacb"
