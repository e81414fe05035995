"""The simulator's report on a launch, as a test reads it."""


class Launched:
    """The simulator's reports on a launch, as data; methods and properties read the first."""

    def __init__(self, launches):
        self.launches = launches

    def memory(self, space, op):
        """Counts of one kind of access: requests of a warp, transactions (sectors of global memory,
        wavefronts of shared memory), the fewest possible, bytes asked for by the lanes, and these
        bytes counted once a request however many lanes share them (distinct).

        An atomic is a load and a store: `atomicOr(x, 0)` reads, `atomicExch(x, v)` writes."""
        memory = self.launches[0]["totals"]["memory"]
        rows = [memory.get(f"{space} {each}", {}) for each in {op, "atomic"}]
        return {what: sum(row.get(what, 0) for row in rows)
                for what in ("requests", "transactions", "ideal", "distinct", "bytes")}

    def requests(self, op, space="global"):
        return self.memory(space, op)["requests"]

    def bytes(self, op, space="global"):
        return self.memory(space, op)["bytes"]

    def sectors_per_request(self, op):
        """Mean sectors of 32 bytes that a warp's request touches; 0 without requests."""
        counts = self.memory("global", op)
        return counts["transactions"] / max(counts["requests"], 1)

    def bank_conflicts(self):
        """Wavefronts of shared memory over the fewest possible: 1 is free of conflicts."""
        both = [self.memory("shared", op) for op in ("load", "store")]
        return sum(c["transactions"] for c in both) / max(sum(c["ideal"] for c in both), 1)

    @property
    def steps(self):
        """Warp instructions."""
        return self.launches[0]["steps"]

    @property
    def in_flight(self):
        """Bytes of a block's cp.async still on their way when a wait returns, mean over waits; None
        without such waits."""
        return self.launches[0]["in_flight"]

    @property
    def load_to_use(self):
        """The most multiply-adds in the code between a load from global memory and the first use of
        what it brings; None without such loads."""
        return self.launches[0]["load_to_use"]

    @property
    def barriers(self):
        return self.launches[0]["totals"]["barriers"]
