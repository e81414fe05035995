"""Graders of r02.
No test looks at real time: the clocks are those of lab.judge.mocks, where every wrong way to
measure has a price that can be worked out beforehand.
"""

from numbers import Real

import numpy as np
import pytest

from day01_roofline import r02_clock
from lab.judge.mistakes import mistake
from lab.judge.mocks import FakeGpu, Weather
from lab.judge.subject import Remote

NBYTES = 12_000_000         # two such arrays fit into the FakeGpu's cache together


# ---- time_call


def stopwatch(facts, repeats, warmup, cold, wrong=()):
    """What time_call should return on a FakeGpu(**facts), or returns when something is wrong."""
    gpu = FakeGpu(**facts)
    copy = gpu.copier(NBYTES)
    for _ in range(0 if "no warm-up" in wrong else warmup):
        copy()
    seconds = []
    start = gpu.clock()
    for i in range(repeats):
        flushed = cold and "no flush" not in wrong and not ("flush once" in wrong and i > 0)
        if flushed and "wait, then flush" in wrong:
            gpu.synchronise()
        if flushed and not {"flush timed", "flush after"} & set(wrong):
            gpu.flush()
        if not {"no wait before", "wait, then flush"} & set(wrong):
            gpu.synchronise()
        began = gpu.clock()
        if flushed and "flush timed" in wrong:
            gpu.flush()
        copy()
        if "no wait after" not in wrong:
            gpu.synchronise()
        seconds.append(gpu.clock() - (start if "one start" in wrong else began))
        if flushed and "flush after" in wrong:
            gpu.flush()
    return [sum(seconds) / repeats] * repeats if "mean" in wrong else seconds


TIMED_WRONG = {      # {id: (sentence, what goes wrong in a stopwatch)}
    "launch_alone": ("the clock is read before the device has finished: only the launch is timed",
                     ["no wait after"]),
    "busy_device": ("the clock is read for the first time while the device is still busy with "
                    "earlier work", ["no wait before"]),
    "no_warm_up": ("the first timed run is the very first run: there was no warm-up",
                   ["no warm-up"]),
    "warm_cache": ("the cache still holds the data of the previous run", ["no flush"]),
    "flush_timed": ("emptying the cache is timed with the run", ["flush timed"]),
    "no_wait_for_flush": ("nothing waits between the emptying of the cache and the first reading: "
                          "the device still empties it while the clock runs", ["wait, then flush"]),
    "flush_after": ("the cache is emptied after a run, so that the first finds it warm",
                    ["flush after"]),
    "flush_once": ("the cache is emptied once and not before each run", ["flush once"]),
    "one_start": ("the clock is started once for all the runs", ["one start"]),
    "divided": ("all runs are timed together and the time is divided by their number", ["mean"]),
    "plain_loop": ("there is neither a warm-up nor a synchronise",
                   ["no wait before", "no wait after", "no warm-up", "no flush"]),
}


def timed_wrong(facts, repeats, warmup, cold):
    """{id: (sentence, seconds)} of a wrong time_call."""
    known = {name: (sentence, stopwatch(facts, repeats, warmup, cold, wrong))
             for name, (sentence, wrong) in TIMED_WRONG.items()}
    more = stopwatch(facts, repeats, warmup + 1, cold)
    known |= {"extra_warm_up": ("one run more than `warmup` says comes before the timed ones", more)
              } if warmup else {"needless_warm_up": ("there is a warm-up run although `warmup` is "
                                                     "0", more)}
    if not cold:
        known["always_cold"] = ("the cache is emptied though `cold` is False",
                                stopwatch(facts, repeats, warmup, True))
    if warmup > 1:
        known["one_warm_up"] = ("there is one warm-up run, whatever `warmup` is",
                                stopwatch(facts, repeats, 1, cold))
    return known


@pytest.mark.parametrize("repeats, warmup, cold", [
    (5, 2, False), (4, 1, True), (1, 3, True), (3, 0, False), (2, 0, True)])
def test_time_call(subject, agree, rng, repeats, warmup, cold):
    facts = {"noise": rng.uniform(0.8, 1.25, 8).tolist()}
    gpu = subject.make("lab.judge.mocks:FakeGpu", **facts)
    got = subject.time_call(gpu.copier(NBYTES), gpu, repeats, warmup, cold)
    case = (f"{repeats} runs from a {'cold' if cold else 'warm'} cache, "
            + (f"{warmup} warm-up run{'s' * (warmup != 1)}" if warmup else "without warm-up"))
    assert isinstance(got, (list, tuple, np.ndarray)), mistake(
        "no_list", f"time_call: got {got!r}, expected a list of seconds, one for each run")
    assert len(got) == repeats or len(got) != repeats + warmup, mistake(
        "warm_up_listed", f"{case}: got {len(got)} times; the warm-up runs must not be in the list",
        "the warm-up runs must not be in the list")
    assert len(got) == repeats, mistake(
        "length", f"{case}: got {len(got)} times, expected {repeats}")
    assert gpu.readings, mistake(
        "other_clock", f"{case}: device.clock() was never called. The timer must use the device's "
                       f"clock, not time.time()")
    agree(got, stopwatch(facts, repeats, warmup, cold), "float64", f"seconds of {case}",
          at=lambda index: f"run {index[0]}", mistakes=timed_wrong(facts, repeats, warmup, cold))
    assert gpu.copies == warmup + repeats, mistake(
        "calls", f"{case}: run() was called {gpu.copies} times, expected {warmup + repeats}")


# ---- summarise


@pytest.mark.parametrize("n, kind", [
    (7, "drawn"), (20, "drawn"), (129, "drawn"), (6, "many alike"), (5, "falling"), (2, "drawn"),
    (3, "all alike"), (1, "drawn")])
def test_summarise(subject, agree, rng, n, kind):
    seconds = rng.lognormal(-7, 0.3, n)
    seconds[n // 2] *= 1 + 30 * (n > 2)             # somebody else needed the machine
    if kind == "many alike":
        seconds = np.array([3.0, 1.0, 3.0, 1.0, 3.0, 1.0]) * 1e-3
    elif kind == "falling":
        seconds = np.sort(seconds)[::-1]
    elif kind == "all alike":
        seconds = np.full(n, 0.25)
    low, median, high = np.quantile(seconds, (0.2, 0.5, 0.8))
    got = parts(subject.summarise(seconds.tolist()), "summarise", "(median, spread)")
    what = f"of {n} run{'s' * (n > 1)}" + f", {kind}" * (kind != "drawn")
    ranked = np.sort(seconds)
    agree(got[0], median, "float64", f"median {what}", mistakes={
        "swapped": ("median and spread are swapped", (high - low) / median),
        "mean": ("the mean is taken; one slow run can move it by any amount", seconds.mean()),
        "fastest": ("the fastest run is taken, not the middle one", seconds.min()),
        "unsorted": ("the list is not sorted before its middle is taken", seconds[n // 2]),
        "upper_middle": ("with an even number of runs, the upper of the two middle ones is taken; "
                         "the median lies halfway between them", np.sort(seconds)[n // 2]),
        "lower_middle": ("with an even number of runs, the lower of the two middle ones is taken; "
                         "the median lies halfway between them", np.sort(seconds)[(n - 1) // 2])})
    agree(got[1], (high - low) / median, "float64", f"spread {what}", mistakes={
        "extremes": ("the spread goes from the fastest run to the slowest",
                     np.ptp(seconds) / median),
        "in_seconds": ("the spread is left in seconds; it is a share of the median", high - low),
        "deviation": ("the standard deviation is taken; one slow run decides it",
                      seconds.std() / median),
        "quartiles": ("quartiles are taken",
                      np.subtract(*np.quantile(seconds, (0.75, 0.25))) / median),
        "tenths": ("the 10th and 90th percentiles are taken",
                   np.subtract(*np.quantile(seconds, (0.9, 0.1))) / median),
        "nearest_run": ("the percentile is the nearest run; np.quantile interpolates between two "
                        "runs",
                        np.subtract(*np.quantile(seconds, (0.8, 0.2), method="nearest")) /
                            median),
        "fifths": ("the runs number n / 5 and 4 n / 5, rounded down, are taken as the percentiles",
                   (ranked[4 * n // 5] - ranked[n // 5]) / median),
        "lower_run": ("the percentile is a rank rounded down; np.quantile interpolates between two "
                      "runs",
                      np.subtract(*np.quantile(seconds, (0.8, 0.2), method="lower")) / median),
        "unsorted_spread": ("the list is not sorted before its percentiles are taken",
                            (seconds[4 * n // 5] - seconds[n // 5]) / median),
        "percent": ("the spread is given in percent; it is a share", 100 * (high - low) / median),
        "half": ("half the distance is taken, as for a plus-minus", (high - low) / median / 2),
        "share_of_low": ("the spread is a share of the 20th percentile, not of the median",
                         (high - low) / low),
        "share_of_high": ("the spread is a share of the 80th percentile, not of the median",
                          (high - low) / high),
        "quotient": ("the quotient of the percentiles is taken, not their distance", high / low),
        "upper_half": ("the upper half alone is taken, from the median to the 80th percentile",
                       (high - median) / median),
        "lower_half": ("the lower half alone is taken, from the 20th percentile to the median",
                       (median - low) / median),
        "share_of_mean": ("the spread is a share of the mean, not of the median",
                          (high - low) / seconds.mean())})


# ---- take_turns


def turns(lengths, factors, rounds, order, warmup=0):
    """{name: seconds} on a machine with this weather. order(round, names): the names in turn.
    warmup: calls of each before the first round, whose seconds are left out."""
    machine = Weather(factors)
    timers = {name: machine.timer(seconds) for name, seconds in lengths.items()}
    taken = {name: [] for name in lengths}
    for timer in list(timers.values()) * warmup:
        timer()
    for number in range(rounds):
        for name in order(number, list(lengths)):
            taken[name].append(timers[name]())
    return taken


def there_and_back(number, names):
    return names[::-1] if number % 2 else names


def rotated(number, names):
    return names[number % len(names):] + names[:number % len(names)]


@pytest.mark.parametrize("names, rounds", [
    (("first", "second"), 5), (("copy", "read", "add"), 4), (("one",), 3), (("first", "second"), 1),
    (("z", "a", "m", "b"), 3), (("first", "second"), 0)])
def test_take_turns(subject, agree, rng, names, rounds):
    lengths = dict(zip(names, rng.uniform(1, 5, len(names)).tolist(), strict=True))
    factors = np.cumsum(rng.uniform(0.1, 1, len(names) * rounds)).tolist()      # it gets slower
    machine = subject.make("lab.judge.mocks:Weather", factors)
    got = subject.take_turns({name: machine.timer(s) for name, s in lengths.items()}, rounds)
    if not rounds:
        assert got != {}, mistake(
            "no_list", f"take_turns of 0 rounds: got {{}}, expected an empty list for each of "
                       f"{', '.join(names)}: a list exists before its first run")
    assert isinstance(got, dict) and list(map(str, got)) == list(names), mistake(
        "no_dict", f"take_turns: got {shown(got)}, expected a list of seconds for each of "
                   f"{', '.join(names)}")
    for name in names:
        assert isinstance(got[name], (list, tuple, np.ndarray)), mistake(
            "no_seconds", f'take_turns: got {shown(got[name])} for "{name}", expected a list of '
                          f'seconds')
    if rounds and len(names) > 1:
        first, second = (list(got[name]) for name in names[:2])
        assert len(first) != rounds * len(names) or first != second, mistake(
            "shared_list", f"take_turns: all names have one and the same list of {len(first)} "
                           f"times; each needs a list of its own")
    for name in names:
        number = len(got[name])
        assert number == rounds, mistake(
            "too_few_rounds" if number < rounds else "too_many_rounds",
            f'{rounds} rounds: got {number} times for "{name}", expected {rounds}: one per round')

    def table(order, warmup=0):
        return list(turns(lengths, factors, rounds, order, warmup).values())

    blocks = Weather(factors)
    timers = [blocks.timer(s) for s in lengths.values()]
    right = turns(lengths, factors, rounds, there_and_back)
    swapped = [[right[names[-1 - i] if number % 2 else name][number] for number in range(rounds)]
               for i, name in enumerate(names)]
    agree([got[name] for name in names], table(there_and_back), "float64",
          f"seconds of {', '.join(names)} in {rounds} rounds on a machine that gets slower",
          at=lambda i: f'"{names[i[0]]}" in round {i[1]}', mistakes={
              "no_turns": ("all runs of one timer come before the first run of the next",
                           [[timer() for _ in range(rounds)] for timer in timers]),
              "same_order": ("every round has the same order",
                             table(lambda number, names: names)),
              "stays_reversed": ("the list that was reversed for one round stays so for the next: "
                                 "the orders are there, back, back, there",
                                 table(lambda number, names: there_and_back(
                                     (number + 1) // 2, names))),
              "rotated": ("the order is rotated by one in each round; it should be reversed in "
                          "every second round", table(rotated)),
              "names_swapped": ("in the reversed rounds the seconds are stored under the wrong "
                                "names", swapped),
              "two_and_two": ("the order is reversed after every second round, not after every "
                              "round",
                              table(lambda number, names: there_and_back(number // 2, names))),
              "round_1_alone": ("only round 1 is reversed, not every second round",
                                table(lambda number, names: names[::-1] if number == 1 else
                                    names)),
              "round_0_alone": ("only round 0 is in order: all rounds after it are reversed",
                                table(lambda number, names: names[::-1] if number else names)),
              "all_reversed": ("every round is reversed",
                               table(lambda number, names: names[::-1])),
              "extra_call": ("each timer is called one time too many",
                             table(there_and_back, 1) if rounds else None),
              "round_0_reversed": ("round 0 is already reversed",
                                   table(lambda number, names: there_and_back(number + 1,
                                       names))),
              "names_sorted": ("the names are sorted; keep the order of the dict",
                               table(lambda number, names: there_and_back(number,
                                   sorted(names))))})


# ---- speedup


@pytest.mark.parametrize("n, faster", [(9, 2), (30, 2), (17, 0.5), (2, 2), (1, 2)])
def test_speedup(subject, agree, rng, n, faster):
    weather = np.linspace(1, 3, n)                  # the machine gets three times slower on the way
    before = weather * rng.uniform(1.9, 2.3, n) * faster / 2
    after = weather * rng.uniform(0.9, 1.1, n)
    before[n // 3] *= 1 + 20 * (n > 1)              # somebody else needed the machine
    ratios = before / after
    low, median, high = np.quantile(ratios, (0.2, 0.5, 0.8))
    got = parts(subject.speedup(before.tolist(), after.tolist()), "speedup", "(low, median, high)")
    what = f"speed-up of {n} pair{'s' * (n > 1)} from about {faster} s to about 1 s"
    agree(got[1], median, "float64", what, mistakes={
        "old_new_swapped": ("old and new are swapped", np.median(after / before)),
        "pairs_lost": ("each list is summarised first; divide within each pair first",
                       np.median(before) / np.median(after)),
        "sorted_first": ("both lists are sorted before they are divided: run i of both is no pair "
                         "any more", np.median(np.sort(before) / np.sort(after))),
        "gain": ("the gain is given, (before - after) / after: a speed-up of 1 is no gain",
                 np.median(before / after - 1)),
        "share_saved": ("the share of time saved is given, (before - after) / before",
                        np.median(1 - after / before)),
        "differences": ("the differences of the pairs are taken, not their ratios",
                        np.median(before - after)),
        "inverted_median": ("after / before is summarised and then inverted: with an even number "
                            "of pairs the middle of two quotients is another",
                            1 / np.median(after / before)),
        "mean": ("the mean of the ratios is taken; one slow run can move it far", ratios.mean()),
        "geometric_mean": ("the geometric mean of the ratios is taken; one slow run moves it",
                           np.exp(np.log(ratios).mean())),
        "totals": ("the totals are compared, so that the slowest runs count most",
                   before.sum() / after.sum())})
    agree((got[0], got[2]), (low, high), "float64", f"(low, high) of the {what}",
          at=lambda index: ("low", "high")[index[0]], mistakes={
              "extremes": ("the slowest and the fastest pair are taken",
                           (ratios.min(), ratios.max())),
              "quartiles": ("quartiles are taken", np.quantile(ratios, (0.25, 0.75))),
              "low_high_swapped": ("low and high are swapped", (high, low)),
              "inverted_swapped": ("after / before is summarised and then inverted, which swaps "
                                   "low and high", 1 / np.quantile(after / before, (0.2, 0.8))),
              "inverted": ("after / before is summarised and then inverted; take the ratio of each "
                           "pair", 1 / np.quantile(after / before, (0.8, 0.2))),
              "pairs_lost": ("each list is summarised first; divide within each pair first",
                             np.quantile(before, (0.2, 0.8)) / np.quantile(after, (0.2, 0.8))),
              "best_and_worst": ("the extremes of the lists are compared: the best of one with the "
                                 "worst of the other",
                                 (before.min() / after.max(), before.max() / after.min())),
              "tenths": ("the 10th and 90th percentiles are taken",
                         np.quantile(ratios, (0.1, 0.9))),
              "deviation": ("the standard deviation is put around the median; one slow run decides "
                            "it", (median - ratios.std(), median + ratios.std())),
              "nearest_pair": ("the percentile is the nearest pair; np.quantile interpolates "
                               "between two", np.quantile(ratios, (0.2, 0.8), method="nearest"))})


# ---- copy_job


def test_copy_job(subject, agree, rng):
    cache = 1000 * int(rng.integers(20_000, 60_000))
    bandwidth, allocate = 0.3e12, 1e-3
    gpu = subject.make("lab.judge.mocks:FakeGpu", bandwidth=bandwidth, cached=4 * bandwidth,
                       cache=cache, allocate=allocate, launch=0.0)
    large, size = 4 * cache, gpu.itemsize
    job = subject.copy_job(gpu)
    assert getattr(job, "_type", "") == "Job", mistake(
        "no_job", f"copy_job: got {shown(job)}, expected a Job")
    assert isinstance(job.run, Remote), mistake(
        "run_before" if gpu.copies else "no_function",
        f"copy_job: run is {shown(job.run)}, expected a function" + (
            ": the copy was made when the Job was, and run holds what it returned"
            if gpu.copies else ""))
    job.run()
    seconds = []
    for _ in range(2):
        copies = gpu.copies
        gpu.synchronise()
        began = gpu.clock()
        job.run()
        assert gpu.copies == copies + 1, mistake(
            "once", f"copy_job: run() copied {gpu.copies - copies} times, expected once: it must "
                    f"do the work each time it is called")
        gpu.synchronise()
        seconds.append(gpu.clock() - began)
    assert not gpu.onto_itself, mistake(
        "onto_itself", "copy_job: run() copies an array onto itself, and half of the memory is "
                       "never used; expected one array copied into another")
    moved = job.moved
    time = max(seconds)
    assert isinstance(moved, Real), mistake(
        "no_bytes", f"copy_job: moved is {moved!r}, expected bytes")
    assert moved or not job.flops, mistake(
        "flops_for_bytes", f"copy_job: moved is 0 and flops is {job.flops:,}: FLOPs and bytes are "
                           f"swapped")
    agree(moved / time, bandwidth, "float64",
          f"byte/s of a copy on a memory of {bandwidth / 1e12:g} TB/s (moved {moved:,} bytes in "
          f"{time * 1e6:.0f} µs)", mistakes={
              "one_direction": ("only one of the two directions is counted", bandwidth / 2),
              "numbers": ("numbers are counted, not bytes", bandwidth / size),
              "one_array_of_numbers": ("one array of numbers is counted, not two of bytes",
                                       bandwidth / size / 2),
              "new_array": ("run() makes a new array each time, and that is timed too",
                            2 * large / (2 * large / bandwidth + allocate)),
              "new_arrays": ("run() makes both arrays each time, and that is timed too",
                             2 * large / (2 * large / bandwidth + 2 * allocate)),
              "multiplied": ("the bytes of the two arrays are multiplied, not added",
                             large * bandwidth / 2),
              "flush": ("run() empties the cache as well, and that is timed too",
                        2 * large / (3 * large / bandwidth)),
              "in_cache": ("both arrays fit into the cache, so memory is never used",
                           4 * bandwidth),
              "third_transfer": ("a third transfer is counted (write-allocate); the copy itself "
                                 "does not need it", bandwidth * 1.5)})
    each = f"copy_job: each array has {moved / 2:,.0f} bytes, expected device.large = {large:,}"
    for name, holds, sentence in (
            ("large_numbers", moved != 2 * large * size,
             "device.large counts bytes, device.array(n) takes numbers"),
            ("too_large", moved <= 2 * large, "both are larger than asked for"),
            ("half_each", moved != large, "both together have device.large"),
            ("too_small", moved == 2 * large, f"in a cache of {cache:,} bytes a real machine would "
                                              f"still find part of the data")):
        assert holds, mistake(name, f"{each}: {sentence}", sentence)
    assert job.flops == 0, mistake(
        "flops", f"copy_job: got {job.flops} FLOPs, expected 0: a copy computes nothing")
    assert job.name == "copy", mistake(
        "name", f'copy_job: the job is named {job.name!r}, expected "copy"')


def test_copy_job__twice(subject):
    """Jobs of two devices, made one after the other, each of its own size and device."""
    jobs = []
    for cache in (1_000_000, 3_000_000):
        gpu = subject.make("lab.judge.mocks:FakeGpu", cache=cache)
        jobs.append((gpu, 4 * cache, subject.copy_job(gpu)))
    for gpu, large, job in jobs:
        job.run()
        assert job.moved == 2 * large, mistake(
            "earlier_sizes", f"copy_job on two devices: moved is {job.moved:,}, expected "
                             f"{2 * large:,}: each Job has the sizes of its own device",
            "each Job has the sizes of its own device")
        assert gpu.copies == 1, mistake(
            "earlier_device", f"copy_job on two devices: run() copied {gpu.copies} times on its "
                              f"own device, expected once: each Job works on the device that it "
                              f"was made for")


@pytest.mark.parametrize("itemsize", [1, 2, 8])
def test_copy_job__itemsize(subject, itemsize):
    gpu = subject.make("lab.judge.mocks:FakeGpu", itemsize=itemsize)
    moved = subject.copy_job(gpu).moved
    assert moved == 2 * gpu.large, mistake(
        "always_4_bytes", f"copy_job on a device whose numbers have {itemsize} byte"
        f"{'s' * (itemsize > 1)}: each array has {moved / 2:,.0f} bytes, expected device.large = "
        f"{gpu.large:,}: device.itemsize says how many bytes a number has",
        "device.itemsize says how many bytes a number has")


# ---- predictions


def test_predict_rate_without_synchronise(subject):
    got = number(subject.predict_rate_without_synchronise(),
                 "predict_rate_without_synchronise", "TB/s")
    gpu = FakeGpu(bandwidth=3e12, launch=5e-6, first=0.0)
    copy = gpu.copier(1_500_000_000)
    began = gpu.clock()
    copy()
    want = 3e9 / (gpu.clock() - began) / 1e12
    gpu.synchronise()
    waited = 3e9 / (gpu.clock() - began) / 1e12
    name, sentence = ("low", "too low. What has finished when you read the clock for the second "
                             "time?") if got < want else \
        ("high", "too high. Divide the bytes of the copy by the time between the two readings")
    for key, value, words in (
            ("waited", waited, "the rate you get if you wait for the copy; nothing waits here"),
            ("half", want / 2, "half the right value: 1.5 GB are read and 1.5 GB are written"),
            ("petabytes", want / 1e3, "right in PB/s; give it in TB/s")):
        if abs(got / value - 1) < 0.02:
            name = key
            sentence = words
    assert abs(got / want - 1) < 0.05, mistake(
        name, f"predict_rate_without_synchronise: {got:g} TB/s is {sentence}", sentence)


def test_predict_utilisation(subject):
    got = number(subject.predict_utilisation(), "predict_utilisation", "percent")
    gpu = FakeGpu(launch=0.0)
    for _ in range(10):
        gpu.enqueue(0.090)                          # on one core or on all: it is one kernel
        gpu.synchronise()
        gpu.wait(0.010)
    want = gpu.utilisation()
    name, sentence = ("low", "too low: one kernel is enough to count as busy") if got < want else \
        ("high", "too high: in 10 of every 100 ms no kernel runs")
    for key, value, words in (
            ("core_time", want / 132, "the share of all cores' time; nvidia-smi does not show it"),
            ("cores", 100 / 132, "the share of the cores in use; the number is about time"),
            ("fraction", want / 100, "right as a fraction; it is shown in percent")):
        if abs(got / value - 1) < 0.02:
            name = key
            sentence = words
    assert abs(got - want) < 0.5, mistake(
        name, f"predict_utilisation: {got:g} is {sentence}", sentence)


# ---- given, not exercises: only the course's own tests check it


class Machine(FakeGpu):
    """A FakeGpu with all that `measure` asks of a device."""

    side, ramp = 1024, 0.1

    def sample(self, run, repeats, cold=True):
        return r02_clock.time_call(run, self, repeats, 0, cold)

    def read(self, source):
        self.enqueue(source.nbytes / self.bandwidth)

    def matmul(self, out, a, b):
        self.enqueue(2 * self.side**3 / 50e12)


def test_roofs_are_those_of_the_machine():
    machine = Machine(launch=0.0, bandwidth=0.3e12)
    jobs = r02_clock.roof_jobs(machine)
    timings = r02_clock.measure(jobs, machine)
    roofs = r02_clock.Roofs.of(jobs, timings)
    assert (roofs.copy, roofs.read, roofs.matmul) == pytest.approx((0.3e12, 0.3e12, 50e12))
    assert {t.runs for t in timings.values()} == {r02_clock.ROUNDS}     # as steady as it gets
    assert all(t.spread == pytest.approx(0) for t in timings.values())


def test_measure_goes_on_until_the_median_is_known_or_time_is_up(rng):
    machine = Machine(noise=rng.uniform(0.9, 1.1, 1009).tolist())
    job = r02_clock.copy_job(machine)
    known = r02_clock.measure([job], machine, limit=1e3)["copy"]
    assert known.uncertainty <= r02_clock.KNOWN and known.runs > r02_clock.ROUNDS
    began = machine.clock()
    stopped = r02_clock.measure([job], machine, limit=0.0)["copy"]
    assert stopped.runs == r02_clock.ROUNDS
    assert machine.clock() - began < 1


def test_measure_wants_a_name_for_each_job():
    machine = Machine()
    with pytest.raises(ValueError, match="a name each, got copy, copy"):
        r02_clock.measure([r02_clock.copy_job(machine)] * 2, machine)


@pytest.mark.parametrize("n", [6, 7, 20, 129])
def test_median_interval_covers_the_median(rng, n):
    lists = rng.lognormal(0, 1, (2000, n))          # skewed, as times are; the true median is 1
    ends = [r02_clock.median_interval(seconds) for seconds in lists]
    assert np.mean([low <= 1 <= high for low, high in ends]) > 0.94


@pytest.mark.parametrize("n", [1, 2, 5])
def test_few_runs_do_not_say_how_far_off_their_median_is(rng, n):
    assert r02_clock.Timing.of(rng.lognormal(0, 1, n)).uncertainty == np.inf
    assert r02_clock.Timing.of(rng.lognormal(0, 1, 6)).uncertainty < np.inf


def test_devices_have_what_is_asked_of_them():
    asked = {"clock", "synchronise", "flush", "sample", "array", "copy", "read", "add", "matmul",
             "itemsize", "side", "ramp"}
    for device in (r02_clock.Cpu, r02_clock.Gpu):
        assert asked <= set(dir(device)), device


def test_cpu_does_the_work_of_its_jobs():
    cpu = r02_clock.Cpu()
    x, y, z = (cpu.array(1001) for _ in range(3))   # not a multiple of the cores
    assert len(np.unique(x)) > 900
    cpu.copy(z, x)
    assert (z == x).all()
    cpu.add(z, x, y)
    assert (z == x + y).all()
    a, b, c = cpu.array(3, 5), cpu.array(5, 2), cpu.array(3, 2)
    cpu.matmul(c, a, b)
    assert np.allclose(c, a @ b)
    assert cpu.spill.nbytes >= 4 * cpu.cache > 0
    assert len(cpu.sample(lambda: cpu.copy(z, x), 3)) == 3
    cpu.read(a)
    one = cpu.array(1)
    cpu.copy(one, cpu.array(1))                     # fewer numbers than cores


# ---- words


def parts(got, name, want):
    assert isinstance(got, (tuple, list, np.ndarray)) and len(got) == len(want.split(",")), mistake(
        "parts", f"{name}: got {shown(got)}, expected {want}")
    return got


def number(got, name, unit):
    assert isinstance(got, Real) and got > 0, mistake(
        "no_number", f"{name}: expected a positive number ({unit}), got {got!r}")
    return got


def shown(got):
    text = repr(got)
    return text if len(text) < 60 else f"a {type(got).__name__}"
