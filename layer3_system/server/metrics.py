"""What a server tells Prometheus, with vLLM's names and meanings

All times are of the engine's monotonic clock.
TTFT runs from a request's arrival, its wait in the queue included, and a preemption does not start
it again.
TPOT = (E2E - TTFT) / (n - 1) of an answer of n tokens; one of a single token has none.
"""

from itertools import pairwise

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from layer3_system.s11_kv_offload import TieredPool

# Bounds in seconds. vLLM's own begin at ten milliseconds a token; the shipped model needs one.
TTFT_BOUNDS = (.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5,
               7.5, 10, 20, 40, 80, 160)
TOKEN_BOUNDS = (.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75,
                1, 2.5, 5, 10, 20)
E2E_BOUNDS = (.01, .05, .1, .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20,
              30, 40, 50, 60, 120, 240, 480)

TRANSFERS = {"out": "GPU_to_CPU", "into": "CPU_to_GPU",         # vLLM's words, whatever the device
             "down": "CPU_to_file", "fill": "file_to_CPU"}


class Metrics:
    """Counters, gauges and histograms of one engine; an observer of its Bridge."""

    def __init__(self, engine, model):
        self.registry = CollectorRegistry()
        self.model = model
        scheduler = engine.scheduler
        pool = engine.pool
        self.gauge("num_requests_running", "Requests with pages.", lambda: len(scheduler.running))
        self.gauge("num_requests_waiting", "Requests that wait for pages.",
                   lambda: len(scheduler.waiting))
        self.gauge("kv_cache_usage_perc", "Share of the pages that are in use, 0 to 1.",
                   lambda: pool.used / pool.P)
        self.prompt = self.counter("prompt_tokens", "Tokens of prompts, computed or found.")
        self.written = self.counter("generation_tokens", "Tokens of answers.")
        self.queries = self.counter("prefix_cache_queries", "Tokens looked up in the pages.")
        self.hits = self.counter("prefix_cache_hits", "Tokens found there.")
        self.preempted = self.counter("num_preemptions",
                                      "Preemptions of a request, counted when it is finished.")
        self.over = self.counter("request_success", "Finished answers, by reason.",
                                 "finished_reason")
        self.drafter = engine.drafter
        self.noted = {}                                     # {counter: what it counts so far}
        if self.drafter:
            self.add_guesses()
        self.tiers = pool if isinstance(pool, TieredPool) else None
        if self.tiers:
            self.add_tiers(pool)
        self.add_times()

    def add_guesses(self):
        self.drafts = self.counter("spec_decode_num_drafts", "Steps of a request with guesses.")
        self.guesses = self.counter("spec_decode_num_draft_tokens", "Guesses.")
        self.accepted = self.counter("spec_decode_num_accepted_tokens", "Guesses that held.")
        self.places = self.counter("spec_decode_num_accepted_tokens_per_pos",
                                   "Guesses that held, by their place.", "position")

    def add_times(self):
        self.ttft = self.times("time_to_first_token", "From arrival to the first token.",
                               TTFT_BOUNDS)
        self.itl = self.times("inter_token_latency", "From one token to the next.", TOKEN_BOUNDS)
        self.tpot = self.times("request_time_per_output_token",
                               "From one token to the next, the mean of an answer.", TOKEN_BOUNDS)
        self.e2e = self.times("e2e_request_latency", "From arrival to the end.", E2E_BOUNDS)
        self.waited = self.times("request_queue_time", "From arrival to the first step.",
                                 TTFT_BOUNDS)

    def add_tiers(self, pool):
        """What lies below the pages, file included."""
        self.gauge("kv_offload_cpu_cache_usage_perc", "Share of host memory's places in use.",
                   lambda: len(pool.host.place_of) / pool.host.places)
        self.moved = self.counter("kv_offload_total_bytes", "Bytes of pages that moved.",
                                  "transfer_type")
        self.below_queries = self.counter("external_prefix_cache_queries",
                                          "Tokens looked up below the pages.")
        self.below_hits = self.counter("external_prefix_cache_hits", "Tokens found there.")

    def note_tiers(self, pool):
        """Count what a TieredPool has counted since the last step."""
        totals = {self.below_queries: pool.asked, self.below_hits: pool.loaded}
        totals |= {self.moved.labels(self.model, TRANSFERS[what]): count
                   for what, count in pool.copies.bytes.items()}
        self.add_new(totals)

    def text(self):
        """All metrics, as Prometheus reads them."""
        return generate_latest(self.registry)

    # ---- what happens

    def stepped(self, engine, outputs):
        self.written.inc(sum(len(output.tokens) for output in outputs))
        if self.drafter:
            self.note_guesses(self.drafter)
        if self.tiers:
            self.note_tiers(self.tiers)
        for request, tokens, _, reason in outputs:
            if tokens:
                self.note_tokens(request, len(tokens))
            if reason:
                self.note_end(request)

    def aborted(self, requests):
        for request in requests:
            self.note_end(request)

    def note_tokens(self, request, count):
        times = request.token_times
        if len(times) == count:                             # its first
            self.ttft.observe(times[0] - request.arrival)
            if request.index == 0:                          # n answers share one prompt
                self.waited.observe(request.scheduled_at - request.arrival)
                self.prompt.inc(len(request.prompt))
                self.queries.inc(len(request.prompt))
                self.hits.inc(request.num_cached)
        for before, now in pairwise(times[-count - 1:]):
            self.itl.observe(now - before)

    def note_guesses(self, drafter):
        """Count what a drafter has counted since the last step."""
        totals = {self.drafts: drafter.drafts, self.guesses: drafter.guesses,
                  self.accepted: drafter.hits.total()}
        totals |= {self.places.labels(self.model, place): count
                   for place, count in drafter.hits.items()}
        self.add_new(totals)

    def add_new(self, totals):
        """Raise counters to {counter: total}."""
        for counter, total in totals.items():
            counter.inc(total - self.noted.get(counter, 0))
        self.noted |= totals

    def note_end(self, request):
        times = request.token_times
        self.over.labels(self.model, request.reason).inc()
        self.preempted.inc(request.preemptions)
        self.e2e.observe(request.finished_at - request.arrival)
        if len(times) > 1:
            self.tpot.observe((times[-1] - times[0]) / (len(times) - 1))

    # ---- vLLM's names, each with the model's

    def gauge(self, name, says, function):
        gauge = Gauge(f"vllm:{name}", says, ["model_name"], registry=self.registry)
        gauge.labels(self.model).set_function(function)

    def counter(self, name, says, *labels):
        counter = Counter(f"vllm:{name}", says, ["model_name", *labels], registry=self.registry)
        return counter if labels else counter.labels(self.model)

    def times(self, name, says, buckets):
        histogram = Histogram(f"vllm:{name}_seconds", says, ["model_name"], buckets=buckets,
                              registry=self.registry)
        return histogram.labels(self.model)
