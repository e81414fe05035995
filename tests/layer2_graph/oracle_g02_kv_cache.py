"""What comes of each known mistake in g02, and attention over a contiguous cache by the book."""

import numpy as np


class Attention:
    """A grader sets batch, each: [(sequence, T, N)], q, k, v, H, G, room and scale."""

    def out(self, owner=lambda b: b, seen=lambda t, T, N: N - T + t + 1, past=True, scale=None,
            q_rows=None, arrays="kv", each=None, last=False):
        """By the book: the t-th of T new tokens sees the keys of its sequence up to its own.

        q_rows: of q, for each row of the result    arrays: in the place of keys and of values
        each: the sequences, in the order in which they are computed    last: the last
        slots of the room are read, not the first
        """
        out, rows = np.empty_like(self.q), iter(range(len(self.q)))
        k, v = (getattr(self, name) for name in arrays)
        for b, T, N in each or self.each:
            begin = self.room - N if last else 0
            for t in range(T):
                row = next(rows)
                keys = slice(begin + (0 if past else N - T), begin + max(seen(t, T, N), 1))
                q_row = row if q_rows is None else q_rows[row]
                for h in range(self.H):
                    g = h // (self.H // self.G)
                    scores = k[owner(b), keys, g] @ self.q[q_row, h] * (scale or self.scale)
                    weights = np.exp(scores - scores.max())
                    out[row, h] = weights / weights.sum() @ v[owner(b), keys, g]
        return out

    def rows(self, begin=None, order=lambda i, B, T: i):
        """The row of q that each row of the result is made of, where run r takes its rows from
        begin(runs before r, r) on, and number i of them at order(i, B, T).
        None: there is none."""
        rows = []
        for n, (first, end, T, _) in enumerate(self.batch):
            start = len(rows) if begin is None else begin(self.batch[:n], (first, end, T))
            rows += [start + order(i, end - first, T) for i in range((end - first) * T)]
        return rows if max(rows, default=0) < len(self.q) else None

    def of_other_rows(self):
        """{id: (what went wrong, the result)} of answers that take other rows of q."""
        rows = {
            "first_times_t": ("a run's rows of q are taken to begin at first · T, as if each "
                              "sequence before had T tokens",
                              self.rows(lambda before, run: run[0] * run[2])),
            "from_row_0": ("each run takes rows of q from row 0 on",
                           self.rows(lambda before, run: 0)),
            "t_further": ("the next run's rows begin T further on, not B · T",
                          self.rows(lambda before, run: sum(T for _, _, T, _ in before))),
            "from_first": ("a run's rows of q are taken to begin at `first`, as if each sequence "
                           "had one", self.rows(lambda before, run: run[0])),
            "rows_by_token": (
                "rows of q are taken token by token, (T, B); they are sequence by sequence, (B, T)",
                self.rows(order=lambda i, B, T: i % T * B + i // T))}
        return {name: (words, self.out(q_rows=some)) for name, (words, some) in rows.items()
                if some}

    def wrong_outs(self):
        """{id: (what went wrong, the result)} of the mistakes that are to be seen here."""
        heads = {b: first for first, end, _, _ in self.batch for b in range(first, end)}
        room = self.room
        want = self.out()
        mistakes = {
            "whole_room": ("all `room` slots are read; only the first N are filled",
                           self.out(seen=lambda t, T, N: room - T + t + 1)),
            "one_more": ("N + 1 slots are read; only N are filled",
                         self.out(seen=lambda t, T, N: min(room, N + 1) - T + t + 1)),
            "one_less": ("N - 1 slots are read; the last new token has one of the N",
                         self.out(seen=lambda t, T, N: N - T + t)),
            "own_scale": ("the argument `scale` is not used, but 1/√D",
                          self.out(scale=self.D ** -0.5)),
            "no_scale": ("the scores are not scaled", self.out(scale=1.0)),
            "causal_prompts_only": ("causal is True only for whole prompts; with a past, several "
                                    "new tokens need it too",
                                    self.out(seen=lambda t, T, N: t + 1 if T == N else N)),
            "not_causal": ("new tokens see later ones: pass causal = True",
                           self.out(seen=lambda t, T, N: N)),
            "first_t": ("the first T slots are read; N of them are filled",
                        self.out(seen=lambda t, T, N: t + 1)),
            "exchanged": ("keys and values are exchanged", self.out(arrays="vk")),
            "keys_as_values": ("keys are passed as values too", self.out(arrays="kk")),
            "last_n": ("the last N slots are read; the first N are filled", self.out(last=True)),
            "empty_slots": ("only slots that were never filled are read: here they hold values of "
                            "100", np.full_like(want, 100.0)),
            "scaled_twice": ("scale is applied twice: flash_attention does it",
                             self.out(scale=self.scale ** 2)),
            "by_scale": ("scores are divided by scale", self.out(scale=1 / self.scale)),
            "runs_sorted": ("runs are taken in the order of N, not in that of the rows of q",
                            self.out(each=[(b, T, N) for first, end, T, N in
                                           sorted(self.batch, key=lambda run: run[3])
                                           for b in range(first, end)])),
            "first_sequences": ("every run reads keys[0:B]; its own sequences are keys[first:end]",
                                self.out(owner=lambda b: b - heads[b])),
            "first_of_run": ("all sequences of a run read the cache of its first",
                             self.out(owner=lambda b: heads[b])),
            "results_by_token": (
                "results are token by token, (T, B); rows of q are sequence by sequence, (B, T)",
                want[self.rows(order=lambda i, B, T: i % B * T + i // B)]),
            "no_past": ("the new tokens see only each other; the past is left out",
                        self.out(past=False))}
        return {name: (words, out) for name, (words, out) in (
            mistakes | self.of_other_rows()).items() if not np.array_equal(out, want)}


def wrong_lengths(starts, counts):
    """{id: (the shape, what went wrong)}"""
    new, B = counts.sum(), len(counts)
    return {name: ((int(n),), words) for name, n, words in (
        ("owner_of_old", starts.sum(), "That is one for each token that the sequences have; each "
                                       "new token gets one."),
        ("one_a_sequence", B, "That is one for each sequence; each new token gets one."),
        ("one_more", new + B, "That is one too many for each sequence."),
        ("one_less", new - B, "That is one too few for each sequence."),
        ("padded", B * counts.max(initial=0), "That is a rectangle: for each sequence as many as "
                                              "the longest gets."),
        ("old_too", (starts + counts).sum(), "Those are the tokens of whole contexts; only new "
                                             "ones get a place."),
        ("to_count", np.maximum(counts - starts, 0).sum(), "A range of positions that begins at "
                                                           "start ends at start + count."))}


def wrong_shares(lens, size):
    """{id: (what went wrong, the share that comes of it)}"""
    used, each = sum(lens), [-(-n // size) * size for n in lens]
    held = sum(each)
    more = size * sum(n // size + 1 for n in lens)
    full = size * sum(n // size for n in lens)
    return {
        "one_piece_more": ("a sequence that fills its last piece exactly is given one piece "
                           "too many", 1 - used / more),
        "used": ("the share in use is returned, not the share without a token", used / held),
        "as_longest": ("every sequence holds as much as the longest",
                       1 - used / (len(lens) * max(each))),
        "averaged": ("the shares of the sequences are averaged; add up tokens and slots "
                     "first", np.mean([1 - n / h for n, h in zip(lens, each, strict=True)])),
        "slots": ("slots are counted, not their share", held - used),
        "by_tokens": ("empty slots are divided by tokens, not by slots",
                      (held - used) / used),
        "shared": ("pieces are counted for all tokens together, as if sequences shared them",
                   1 - used / (-(-used // size) * size)),
        "one_piece": ("every sequence holds one piece, however long it is",
                      1 - used / (len(lens) * size)),
        "longest_unrounded": ("every sequence has room for as many tokens as the longest, "
                              "not in whole pieces", 1 - used / (len(lens) * max(lens))),
        "pieces_as_slots": ("each piece is counted as one slot", 1 - used * size / held),
        "sequences_counted": ("sequences are counted in place of their tokens",
                              1 - len(lens) / held),
        "by_one_piece": ("empty slots are divided by one piece for each sequence, not by all "
                         "slots", (held - used) / (len(lens) * size)),
        "per_cent": ("it is in per cent", 100 * (1 - used / held)),
        "one_at_least": ("n // size pieces are counted, or one: a last piece that is not full "
                         "counts too", 1 - used / sum(max(1, n // size) * size for n in lens)),
        "filled_as_empty": ("n % size is taken for the empty slots of a sequence's last piece; so "
                            "many are filled", sum(n % size for n in lens) / held),
        "full_as_empty": ("a sequence that fills its last piece exactly is taken to leave all of "
                          "it empty", sum(size - n % size for n in lens) / held),
        "upside_down": ("slots are divided by tokens, not tokens by slots", 1 - held / used),
        "rest_of_size": ("size % n is taken for a sequence's empty slots",
                         1 - used / (used + sum(size % n for n in lens))),
        "not_whole": ("pieces are not whole, n / size of them, or // rounds the share itself "
                      "down", 0.0),
        **({"full_alone": ("a sequence's last piece, which is not full, is not counted",
                           1 - used / full)} if full else {})}
