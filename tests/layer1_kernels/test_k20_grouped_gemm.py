"""Graders of k20.
Outputs start as 7 or -7, so that unwritten places show."""

import numpy as np
import pytest

from lab.judge.adversarial import VALUES
from lab.judge.compare import rounded_once
from lab.judge.launched import Launched
from lab.judge.mistakes import mistake, same_report
from lab.judge.pace import made_by, numbers, whole
from lab.judge.subject import Raised
from lab.judge.work import same_work

SORTS = [(74, 8, 32), (129, 16, 64), (32, 2, 32), (1, 1, 16), (100, 8, 16)]     # n, E, BLOCK
N, K = 40, 48
TILE = {"BM": 16, "BN": 16, "BK": 16, "GROUP": 2,
        "num_warps": 1}     # more would multiply the same twice
# Of few numbers these depend on how a matrix is laid out: lanes repeat each other's loads.
LAYOUT = ("bytes loaded", "requests", "sectors", "passes through shared memory")
PROGRAMS = 5            # N / BN = 3 columns of tiles: with 3 programs each would make one column
#                         alone, and a tile that is made twice by one program is no race


# ---- inputs


def choices(rng, T, k, E, empty=()):
    """(T, k) experts of tokens, different ones for each; no token chooses those in `empty`."""
    scores = rng.random((T, E))
    scores[:, list(empty)] = -1
    return np.argsort(-scores, axis=1)[:, :k].astype(np.int32)


def by_expert(experts, E):
    """(order, offsets) of experts (T, k), by the book."""
    flat = experts.ravel()
    loads = np.bincount(flat, minlength=E)
    return (np.argsort(flat, kind="stable").astype(np.int32),
            np.cumsum([0, *loads]).astype(np.int32))


def in_blocks(flat, E, block):
    """(blocks, E) slots of each block by expert."""
    return np.stack([np.bincount(flat[i:i + block], minlength=E)
                     for i in range(0, len(flat), block)]).astype(np.int32)


def tensors(*arrays):
    import torch

    return [torch.from_numpy(np.ascontiguousarray(a)) for a in arrays]


def sevens(*shape):
    return np.full(shape, -7, np.int32)


# ---- the prediction


def test_predict_rows(subject, reference, rng):
    """A tile of each slot is counted, as the course's own kernel makes them."""
    got = subject.predict_rows()
    assert isinstance(got, (int, float)), mistake(
        "no_number", f"predict_rows: expected a number, got {got!r}")
    order, offsets = by_expert(choices(rng, 1, 16, 64), 64)
    x, w = (rng.standard_normal(shape).astype(np.float16) for shape in ((8, 16), (64, 16, 16)))
    run_gemm(reference, x, w, order, offsets, None)
    want = tensor_flops(last_launch(reference)) / (2 * 16 * 16) / len(order)
    why = {1: ("full_tiles", "a tile is made by the slots of one expert, and here an expert has "
                             "one slot"),
           2: ("copies", "that each token is multiplied twice is needed: 16 rows are needed, and "
                         "not 8"),
           4: ("mean", "64 experts over 16 slots is not what is multiplied: 48 experts have no "
                       "slot, and no tile"),
           64: ("all_experts", "an expert without slots has no tile")}
    name, sentence = next((row for value, row in why.items() if abs(got - value) < 0.01),
                          ("other", "count the tiles of one expert, and the rows of a tile"))
    assert abs(got - want) < 0.01, mistake(
        name, f"predict_rows: {got:g} is not what is counted: {sentence}", sentence)


# ---- counting


def run_count(subject, flat, E, block):
    counts = sevens(-(-len(flat) // block), E)
    operands = tensors(flat, counts)
    launch = subject.launch("count_triton", len(counts), args=(*operands, len(flat)), E=E,
                            BLOCK=block, num_warps=1)
    return operands[1], launch


@pytest.mark.parametrize("n, E, block", SORTS)
def test_count_triton(subject, agree, rng, n, E, block):
    flat = rng.integers(0, E, n, dtype=np.int32)
    want = in_blocks(flat, E, block)
    with same_report("one_row", "All blocks write one row: block b has row b, which begins at "
                     "counts + b * E.", kind="race", array="counts"):
        got, _ = run_count(subject, flat, E, block)
    beyond = want.copy()
    beyond[-1, 0] += -n % block
    agree(got, want, "exact", f"count_triton, {n} slots of {E} experts in blocks of {block}",
          lambda i: f"slots of expert {i[1]} in block {i[0]}", {
              "no_mask": ("the lanes beyond the last slot are counted, as slots of expert 0",
                          beyond),
              "first_block_again": ("each block counts the slots of block 0: those of block b "
                                    "begin at b · BLOCK", np.repeat(want[:1], len(want), 0)),
              "so_far": ("a block's row has the slots of all blocks so far; the scan adds them up",
                         np.cumsum(want, 0)),
              "shares": ("1 is written where an expert is chosen, and not how often",
                         np.minimum(want, 1))}, unwritten=-7)


def test_count_triton__work(subject, reference, rng):
    flat = rng.integers(0, 8, 128, dtype=np.int32)
    launches = (run_count(side, flat, 8, 64)[1] for side in (subject, reference))
    same_work("count_triton", *launches, but=LAYOUT)


# ---- the scan


LAST_TILE = "`total` has the slots of the last rows loaded alone: it grows by them"


def run_scan(subject, counts, rows):
    """(offsets, starts, launch)."""
    blocks, E = counts.shape
    operands = tensors(counts, sevens(E + 1), sevens(blocks, E))
    launch = subject.launch("scan_triton", 1, args=(*operands, blocks), E=E, B=rows,
                            num_warps=1)
    return operands[1], operands[2], launch


@pytest.mark.parametrize("blocks, E, rows", [(3, 8, 2), (1, 2, 1), (5, 4, 8), (9, 16, 4)])
def test_scan_triton(subject, agree, rng, blocks, E, rows):
    counts = rng.integers(1, 9, (blocks, E), dtype=np.int32)
    offsets, starts, _ = run_scan(subject, counts, rows)
    what = f"scan_triton, {blocks} blocks, {E} experts, {rows} rows at a time"
    ends = np.cumsum(counts, 0)
    want = ends - counts
    tile = np.arange(blocks) // rows * rows         # the first block of each block's tile
    before = want[tile]                             # slots in earlier tiles
    two = np.where((tile >= rows)[:, None], want[tile] - want[np.maximum(tile - rows, 0)], 0)
    agree(starts, want, "exact", f"{what}, starts", lambda i: f"expert {i[1]}, block {i[0]}", {
        "inclusive": ("a block's own slots are counted among those before it: take them off again",
                      ends),
        "blocks_left_out": ("the blocks that are loaded together do not count each other's slots, "
                            "and would put them in one place", before),
        "tile_alone": ("the slots of the blocks loaded before are forgotten", want - before),
        "last_tile_alone": (LAST_TILE, want - before + two),
        "across_experts": ("starts go on from expert to expert: they are counted down each column "
                           "(axis 0)", np.cumsum(counts, 1) - counts)}, unwritten=-7)
    loads = counts.sum(0)
    right = np.cumsum([0, *loads])
    last = np.cumsum([0, *counts[tile[-1]:].sum(0)])
    agree(offsets, right, "exact", f"{what}, offsets", lambda i: f"offsets[{i[0]}]", {
        "offset_zero_missing": ("the first offset is not written: there are E + 1, and expert 0 "
                                "begins at 0", np.array([-7, *right[1:]])),
        "ends_for_begins": ("offsets[e] is where expert e ends: that is where e + 1 begins",
                            np.array([*right[1:], -7])),
        "last_tile_alone": (LAST_TILE, last),
        "loads_alone": ("offsets are the loads, not their sums", np.array([0, *loads]))},
        unwritten=-7)


def test_scan_triton__work(subject, reference, rng):
    counts = rng.integers(0, 9, (16, 8), dtype=np.int32)
    launches = (run_scan(side, counts, 4)[2] for side in (subject, reference))
    same_work("scan_triton", *launches, but=LAYOUT)


# ---- placing


def run_place(subject, flat, E, block):
    """(order, launch), from offsets and starts by the book."""
    counts = in_blocks(flat, E, block)
    offsets = np.cumsum([0, *counts.sum(0)]).astype(np.int32)
    starts = (np.cumsum(counts, 0) - counts).astype(np.int32)
    operands = tensors(flat, offsets, starts, sevens(len(flat)))
    launch = subject.launch("place_triton", len(counts), args=(*operands, len(flat)), E=E,
                            BLOCK=block, num_warps=1)
    return operands[-1], launch


@pytest.mark.parametrize("n, E, block", SORTS)
def test_place_triton(subject, agree, rng, n, E, block):
    flat = rng.integers(0, E, n, dtype=np.int32)
    flat[-1] = E - 1                                # so that the last place is taken in each draw
    want = np.argsort(flat, kind="stable")
    block_of = np.arange(n) // block
    turned = np.lexsort((-np.arange(n), block_of, flat))
    with same_report("one_too_far", "The first slot of an expert in a block has rank 0: no slot "
                     "counts itself.", kind="out_of_bounds", array="order"), \
            same_report("same_place", "Two slots go to one place. Lanes beyond the last slot store "
                        "nothing, and a place is offsets[e] + starts[b, e] + rank.",
                        kind="race", array="order"):
        got, _ = run_place(subject, flat, E, block)
    agree(got, want, "exact", f"place_triton, {n} slots of {E} experts in blocks of {block}",
          lambda i: f"order[{i[0]}], a slot of expert {flat[want[i[0]]]}", {
              "backwards": ("the slots of a block stand in order by expert, but those of an expert "
                            "backwards: the sort is not stable", turned),
              "expert_for_slot": ("the expert is stored, and the number of its slot is lost",
                                  flat[want]),
              "within_block": ("a slot is stored as its number in the block, not in all",
                               want % block)}, unwritten=-7)


def test_place_triton__work(subject, reference, rng):
    flat = rng.integers(0, 8, 128, dtype=np.int32)
    launches = (run_place(side, flat, 8, 32)[1] for side in (subject, reference))
    same_work("place_triton", *launches, but=LAYOUT)


# ---- the product


def run_gemm(subject, x, w, order, offsets, weights):
    """y, of the given launcher: it makes a descriptor of w."""
    import torch

    operands = [a if torch.is_tensor(a) else tensors(a)[0] for a in (x, w)]
    y = torch.full((len(order), w.shape[1]), 7, dtype=operands[0].dtype)
    last = None if weights is None else tensors(weights)[0]
    subject.launch_grouped(*operands, y, *tensors(order, offsets), last, len(order) // len(x),
                           PROGRAMS, TILE)
    return y


def last_launch(subject):
    """What the simulator counted of it."""
    launch = subject.make("lab.simulator:last_launch")
    totals = subject.make("lab.simulator.report:counts_as_data", launch.totals)
    return Launched([{"totals": totals, "steps": launch.steps, "lane_steps": launch.lane_steps,
                      "evenness": launch.evenness}])


def tensor_flops(launch):
    kinds = launch.launches[0]["totals"]["flops_by_type"]
    return sum(count for kind, count in kinds.items() if "tensor" in kind)


def case(rng, experts, E, X, dtype="float32", n=N, k=K):
    """x, w, weights in float64 as rounded to dtype, and x, w as tensors of it."""
    import torch

    arrays = rng.standard_normal((X, k)), rng.standard_normal((E, n, k))
    operands = [torch.from_numpy(a).to(getattr(torch, dtype)) for a in arrays]
    weights = rng.random(experts.size).astype(np.float32) + 0.5
    return *(a.double().numpy() for a in operands), weights, operands


def right_gemm(agree, got, x, w, order, offsets, weights, what, precision="float32"):
    """Row i is slot i's, or the message names the slot, its expert and the likely mistake."""
    R, each = len(order), len(order) // len(x)
    loads = np.diff(offsets)
    expert = np.repeat(np.arange(len(loads)), loads)            # of each place
    factor = np.ones(R) if weights is None else weights.astype(np.float64)

    def scattered(rows):
        y = np.empty_like(rows)
        y[order] = rows
        return y

    def sums(rows, experts):
        return np.stack([w[e] @ row for e, row in zip(experts, rows, strict=True)])

    with np.errstate(all="ignore"):
        plain = sums(x[order // each], expert)                  # (R, N), by place
        want = scattered(plain) * factor[:, None]
        rank = np.arange(R) - offsets[expert]
        whole = loads[expert] // TILE["BM"] * TILE["BM"]
        column, inner = np.divmod(np.arange(want.shape[1]), TILE["BN"])
        mistakes = {
            "floor_tiles": ("the last rows of an expert are left out: its tiles are rounded up, "
                            "not down", scattered(np.where((rank < whole)[:, None],
                                                           want[order], 7))),
            "weight_by_place": ("a slot's weight is read at the slot's place in the sorted list, "
                                "where another slot's stands", scattered(plain * factor[:, None])),
            "no_weights": ("the router's weights are left out", scattered(plain)),
            "twice_weighted": ("the weights are multiplied twice", want * factor[:, None]),
            "left_sorted": ("the results stand by place: row i is slot i's", want[order]),
            "not_gathered": ("x is read in its own order: the slot at place m is order[m]",
                             scattered(sums(x[np.arange(R) // each], expert)) * factor[:, None]),
            "column_for_row": ("a descriptor counts rows of w, not tiles: column c of tiles begins "
                               "c · BN rows after the expert's first",
                               scattered(plain[:, column + inner]) * factor[:, None]),
            "one_expert": ("all slots are multiplied by the weight of expert 0",
                           scattered(sums(x[order // each], 0 * expert)) * factor[:, None])}
    of = np.empty(R, int)
    of[order] = expert
    agree(got, want, precision, f"grouped_gemm_triton, {what}",
          lambda i: f"slot {i[0]} (token {i[0] // each}, expert {of[i[0]]}), column {i[1]}",
          mistakes, unwritten=7)


def test_grouped_gemm_triton__last_columns(subject, agree, rng):
    """A tile of w runs into the rows of the next expert, which are not numbers."""
    import torch

    x, w, _, operands = case(rng, np.zeros((1, 1)), 2, 1, n=7, k=5)
    operands[1][1] = torch.nan
    order, offsets = np.array([0], np.int32), np.array([0, 1, 1], np.int32)
    with same_report("beyond_the_row", "Columns of a tile from N on come from the next expert's "
                     "rows of w: they are not stored.", kind="out_of_bounds", array="y"):
        got = run_gemm(subject, *operands, order, offsets, None)
    right_gemm(agree, got, x, w, order, offsets, None, "one slot of expert 0, N = 7")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_grouped_gemm_triton(subject, agree, rng, dtype):
    """Every expert has slots, and none a whole number of tiles but by chance."""
    experts = choices(rng, 37, 2, 4)
    order, offsets = by_expert(experts, 4)
    x, w, weights, operands = case(rng, experts, 4, 37, dtype)
    with same_report("into_the_next", "Two programs make one row. A tile ends where its expert "
                     "ends: the places from `end` on are the next expert's. And a program leaves "
                     "an expert when p is past its last tile, not before.", kind="race",
                     array="y"), \
            same_report("slot_as_token", "Row slot // EACH of x is the slot's: EACH slots share a "
                        "token.", kind="out_of_bounds", array="x"):
        got = run_gemm(subject, *operands, order, offsets, weights)
    right_gemm(agree, got, x, w, order, offsets, weights, f"37 tokens, 2 of 4 experts, {dtype}",
               dtype)


@pytest.mark.parametrize("empty", [(3,), (0, 3, 7)])
def test_grouped_gemm_triton__empty(subject, agree, rng, empty):
    """Experts without slots, whose weights are not numbers; tiles of others run into them."""
    import torch

    experts = choices(rng, 37, 2, 8, empty)
    order, offsets = by_expert(experts, 8)
    x, w, weights, operands = case(rng, experts, 8, 37)
    operands[1][list(empty)] = torch.nan
    shifts = "An expert without slots has no tile: those after it begin where it begins."
    with same_report("empty_shifts", shifts, kind="race", array="y"), \
            same_report("empty_shifts", shifts, kind="out_of_bounds", array="y"):
        got = run_gemm(subject, *operands, order, offsets, weights)
    right_gemm(agree, got, x, w, order, offsets, weights,
               f"37 tokens, 2 of 8 experts, none to {' and '.join(map(str, empty))}")


@pytest.mark.parametrize("T, k, E, n, dims, dtype", [
    (1, 1, 1, 16, 16, "float32"), (1, 3, 5, 7, 5, "bfloat16"), (40, 1, 1, 33, 20, "float16"),
    (19, 4, 6, 1, 65, "float32")])
def test_grouped_gemm_triton__sizes(subject, agree, rng, T, k, E, n, dims, dtype):
    """One token, one expert, all slots to one; then the second product: each slot has a row."""
    experts = choices(rng, T, k, E)
    order, offsets = by_expert(experts, E)
    for X, weighted in ((T, False), (T * k, True)):
        x, w, weights, operands = case(rng, experts, E, X, dtype, n, dims)
        got = run_gemm(subject, *operands, order, offsets, weights if weighted else None)
        right_gemm(agree, got, x, w, order, offsets, weights if weighted else None,
                   f"{T * k} slots of {E} experts, {X} rows of x, N = {n}, K = {dims}, {dtype}",
                   dtype)


def test_grouped_gemm_triton__hard_numbers(subject, agree, rng):
    """Rows that are infinite or not a number spoil only themselves; sums are fp32 throughout."""
    experts = choices(rng, 20, 2, 4)
    order, offsets = by_expert(experts, 4)
    for kind in ("infinite", "not_a_number", "uneven"):
        x, w, weights, operands = case(rng, experts, 4, 20)
        x = VALUES[kind](rng, x.shape).astype(np.float32)
        got = run_gemm(subject, x, operands[1], order, offsets, weights)
        right_gemm(agree, got, x.astype(np.float64), w, order, offsets, weights, f"x {kind}")
    x, w, weights, operands = case(rng, experts, 4, 20, "float16")
    got = run_gemm(subject, *operands, order, offsets, weights)
    loads = np.diff(offsets)
    want = np.empty((len(order), N))
    want[order] = np.stack([w[e] @ row for e, row in
                            zip(np.repeat(range(4), loads), x[order // 2], strict=True)])
    rounded_once(got, want * weights[:, None], "grouped_gemm_triton", "40 float16 rows")


def test_grouped_gemm_triton__work(subject, reference):
    rng = np.random.default_rng(20)     # the same loads each time: evenness depends on them
    experts = choices(rng, 37, 2, 8, (3,))
    order, offsets = by_expert(experts, 8)
    *_, weights, operands = case(rng, experts, 8, 37, "float16")
    for side in (subject, reference):
        run_gemm(side, *operands, order, offsets, weights)
    own, course = map(last_launch, (subject, reference))
    got, want = tensor_flops(own), tensor_flops(course)
    rows = 2 * K * -(-N // TILE["BN"]) * TILE["BN"]             # FLOPs of a row
    assert got, mistake("no_tensor_cores", "grouped_gemm_triton multiplies float16 without tensor "
                        "cores: product_triton has a tl.dot")
    assert got <= want, mistake("more_rows", f"grouped_gemm_triton multiplies {got / rows:g} rows "
                                f"for {len(order)} slots, the course's own {want / rows:g}: an "
                                f"expert has as many tiles as its slots fill")
    even, best = (each.launches[0]["evenness"] for each in (own, course))
    uneven = ("the next tile of a program is P further in the list of all experts' tiles (write "
              "`while`: of a `for` over tiles between those over experts and k, Triton 3.7 forgets "
              "what the outer loop counts)")
    assert even > 0.9 * best, mistake("uneven", (
        f"grouped_gemm_triton, {PROGRAMS} programs: the busiest does {1 / even:.2f} times the mean "
        f"work, in the course's own {1 / best:.2f} times: {uneven}"), uneven)
    same_work("grouped_gemm_triton", own, course)


def test_grouped_gemm_triton__nothing(subject):
    """Without slots nothing is written, and nothing read but offsets."""
    x, w = np.ones((1, K), np.float32), np.ones((2, N, K), np.float32)
    empty = np.zeros(0, np.int32)
    rows = len(run_gemm(subject, x, w, empty, np.zeros(3, np.int32), None))
    assert rows == 0, f"grouped_gemm_triton without slots: {rows} rows, expected none"


@pytest.mark.parametrize("array, each", [("x", 1), ("y", 2**29)])
def test_grouped_gemm_triton__addresses(subject, array, each):
    """One slot, whose row begins at 2^32 and so beyond the array: 32 bits take that for 0."""
    row, w = np.zeros((1, 16), np.float32), np.zeros((1, 16, 16), np.float32)
    order, offsets = np.array([2**28], np.int32), np.array([0, 1], np.int32)
    try:
        subject.launch_grouped(*tensors(row, w, row.copy(), order, offsets), None, each, 1, TILE)
        beyond = False
    except Raised as error:
        beyond = "out-of-bounds" in error.text and f"`{array}`" in error.text
    assert beyond, mistake("short_index", (
        f"grouped_gemm_triton takes a row of {array} that begins at number 2^32 for another: a "
        f"product of two int32 has 32 bits. Make `slot` a tl.int64 before it is multiplied"))


# ---- the course's own launchers; more tests of them are in test_grouped_launchers.py


@pytest.mark.parametrize("T, k, E", [(37, 2, 8), (1, 1, 1), (5, 3, 60), (0, 2, 4), (300, 2, 64)])
def test_both_sorts(subject, rng, T, k, E):
    import torch

    experts = choices(rng, T, k, E)
    order, offsets = subject.sort_slots_oracle(experts, E)
    for sort in (subject.sort_slots, subject.sort_slots_torch):
        for dtype in (torch.int32, torch.int64):
            got = sort(torch.from_numpy(experts.T.copy()).to(dtype).T, E)
            assert all(part.dtype == torch.int32 for part in got)
            assert np.array_equal(got[0], order) and np.array_equal(got[1], offsets)


@pytest.mark.parametrize("T, k, E, N, K, dtype", [
    (37, 2, 8, 40, 48, "float32"), (5, 3, 60, 7, 5, "bfloat16"), (130, 2, 3, 33, 20, "float16"),
    (300, 1, 2, 16, 32, "bfloat16"), (1, 1, 1, 1, 1, "float32")])
def test_every_launcher(subject, agree, rng, T, k, E, N, K, dtype):
    """For few rows of an expert, some, and many: the tiles differ."""
    experts = choices(rng, T, k, E)
    order, offsets = by_expert(experts, E)
    for X, weighted in ((T, False), (T * k, True)):
        x, w, weights, operands = case(rng, experts, E, X, dtype, N, K)
        last = weights if weighted else None
        want = subject.grouped_gemm_oracle(x, w, order, offsets, last)
        for name in ("grouped_gemm", "grouped_gemm_torch"):
            got = getattr(subject, name)(*operands, *tensors(order, offsets),
                                         None if last is None else tensors(last)[0])
            agree(got, want, dtype, f"{name}, {T * k} slots of {E} experts, {X} rows of x, {dtype}")


def test_oracle_is_torchs(subject, rng):
    import torch

    experts = choices(rng, 9, 2, 4, (1,))
    x, w, _, operands = case(rng, experts, 4, 9, n=8, k=12)
    order, offsets = by_expert(experts, 4)
    want = torch.nn.functional.grouped_mm(operands[0][order // 2], operands[1].transpose(1, 2),
                                          offs=torch.from_numpy(offsets[1:]))
    got = subject.grouped_gemm_oracle(x, w, order, offsets)
    assert np.allclose(got[order], want.numpy(), rtol=1e-5, atol=1e-5)


def test_gradients_are_torchs(subject, rng):
    import torch

    experts = choices(rng, 9, 2, 4, (1,))
    _, _, weights, operands = case(rng, experts, 4, 9, n=8, k=12)
    order, offsets = by_expert(experts, 4)
    operands = [a.requires_grad_() for a in (*operands, *tensors(weights))]
    upstream = torch.from_numpy(rng.standard_normal((18, 8)).astype(np.float32))
    got = subject.grad("grouped_gemm_torch", (*operands[:2], *tensors(order, offsets), operands[2]),
                       upstream)
    x, w, factor = (a.detach().double().requires_grad_() for a in operands)
    flat = torch.from_numpy(experts.ravel()).long()
    y = torch.einsum("rk,rnk->rn", x.repeat_interleave(2, 0), w[flat]) * factor[:, None]
    for ours, theirs in zip(got, torch.autograd.grad(y, (x, w, factor), upstream.double()),
                            strict=True):
        assert torch.allclose(ours.double(), theirs, rtol=1e-4, atol=1e-4)
    with pytest.raises(Raised) as refusal:
        subject.grouped_gemm(*operands[:2], *tensors(order, offsets), operands[2])
    assert "requires a gradient" in refusal.value.text


@pytest.mark.parametrize("X, R, E, N, K", [(0, 0, 3, 4, 5), (4, 0, 3, 4, 5), (4, 8, 3, 0, 5),
                                           (4, 8, 3, 4, 0)])
def test_nothing_to_do(subject, X, R, E, N, K):
    import torch

    order = torch.arange(R, dtype=torch.int32)
    offsets = torch.tensor([0] + [R] * E, dtype=torch.int32)
    for launcher in (subject.grouped_gemm, subject.grouped_gemm_torch):
        got = launcher(torch.ones(X, K), torch.ones(E, N, K), order, offsets)
        assert torch.equal(got, torch.zeros(R, N))


def test_what_the_launchers_refuse(subject):
    import torch

    x, w, weights = torch.ones(4, 6), torch.ones(3, 5, 6), torch.ones(8)
    order = torch.arange(8, dtype=torch.int32)
    offsets = torch.tensor([0, 3, 3, 8], dtype=torch.int32)
    for operands, says in (
            ((x, w[:, :, :5], order, offsets), "x has shape (4, 6) and w (3, 5, 5)"),
            ((x.half(), w, order, offsets), "x is torch.float16 and w torch.float32"),
            ((x, w, order[:7], offsets), "x has 4 rows and order shape (7,)"),
            ((x[:0], w, order, offsets), "x has 0 rows and order shape (8,)"),
            ((x, w, order, offsets[:3]), "offsets has shape (3,), expected (4,)"),
            ((x, w, order, offsets, weights[:7]), "weights has shape (7,), expected (8,)"),
            ((x, w, order.long(), offsets), "order is torch.int64 on cpu, expected torch.int32"),
            ((x, w, order, offsets, weights.half()), "weights is torch.float16"),
            ((torch.ones(6, 4).T, w, order, offsets), "x has strides (1, 4)"),
            ((x, torch.ones(3, 6, 5).transpose(1, 2), order, offsets), "w has strides (30, 1, 5)")):
        for launcher in (subject.grouped_gemm, subject.grouped_gemm_torch):
            with pytest.raises(Raised) as refusal:
                launcher(*operands)
            assert says in refusal.value.text
    experts = torch.tensor([[0, 1], [2, 0], [1, 0], [8, 1]])
    for operands, says in (((experts, 8), "expert 8 in row 3, expected 0 to 7"),
                        ((experts - 1, 8), "expert -1 in row 0, expected 0 to 7"),
                        ((experts[0], 8), "experts has shape (2,), expected (T, k)"),
                        ((experts.float(), 9), "experts is torch.float32"),
                        ((experts, 2000), "E is 2000, expected 1 to 1024")):
        for launcher in (subject.sort_slots, subject.sort_slots_torch):
            with pytest.raises(Raised) as refusal:
                launcher(*operands)
            assert says in refusal.value.text


def test_the_tile_fits_the_mean_load(subject):
    for R, E, itemsize, want in ((8192, 8, 2, 128), (32_768, 256, 2, 128), (512, 8, 2, 64),
                                 (16, 64, 2, 16), (8192, 8, 4, 64), (16, 64, 4, 16)):
        assert subject.configuration(R, E, itemsize)["BM"] == want, (R, E, itemsize)


@pytest.mark.slow
def test_what_hopper_gets():
    from layer1_kernels.bench.k20_grouped_gemm import shipped, sorting

    for name, kernel in (shipped() | sorting()).items():
        assert kernel.spills == 0, f"{name}: {kernel.spills} bytes spilled"
        assert not kernel.serialised, f"{name}: {kernel.serialised}"
        assert kernel.shared <= 227 * 1024, f"{name}: {kernel.shared} bytes of shared memory"
        assert kernel.wgmma or "gemm" not in name, f"{name}: no wgmma"
        assert kernel.tma_loads or "grouped" not in name, f"{name}: tiles of w not by the TMA"


@pytest.mark.gpu
@pytest.mark.parametrize("T, k, E, N, K", [(0, 2, 4, 16, 16), (1, 2, 8, 64, 64),
                                           (37, 8, 60, 129, 127), (1000, 2, 8, 1000, 512)])
def test_every_kernel_on_the_device(T, k, E, N, K):
    import torch

    from layer1_kernels import grouped_gemm, sort_slots, sort_slots_torch

    rng = np.random.default_rng(0)
    experts = torch.from_numpy(choices(rng, T, k, E)).cuda()
    order, offsets = sort_slots(experts, E)
    assert all(map(torch.equal, (order, offsets), sort_slots_torch(experts, E)))
    x, w = torch.randn(T, K, device="cuda"), torch.randn(E, N, K, device="cuda")
    weights = torch.rand(T * k, device="cuda")
    near = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
    for dtype, relative in near.items():
        xd, wd = x.to(dtype), w.to(dtype)
        got = grouped_gemm(xd, wd, order, offsets, weights).double()
        flat = experts.reshape(-1)
        for e in range(E):
            slots = (flat == e).nonzero()[:, 0]
            want = xd[slots // k].double() @ wd[e].double().T * weights[slots, None].double()
            assert torch.allclose(got[slots], want, rtol=relative, atol=relative * K**0.5 * 4)


@pytest.mark.gpu
def test_grouped_gemm_triton_speed(pace):
    pace("grouped_gemm", numbers("bfloat16", 4096, 2048), numbers("bfloat16", 8, 2048, 2048),
         made_by("sort_slots", whole("int32", 8, 4096, 2), 8))
