"""Products by mma.sync: exact where the inputs are small integers, and close where not.

Expected values come from numpy in double precision.
What CUDA C cannot say is inline PTX.
"""

import numpy as np
import pytest

from lab import simulator
from lab.simulator import nvrtc, ptx
from lab.simulator.decode import decode

from .conftest import error_of, run, to_bf16

# ---- mma.sync: every shape, with fragments that the kernel finds in memory as registers

MMA = """extern "C" __global__ void k(const unsigned* a, const unsigned* b, const unsigned* c,
                                      unsigned* d) {
    CODE
}"""
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1,
        "e4m3": 8, "e5m2": 8, "f32": 32, "s32": 32, "f64": 64}


def mma(text, counts, a, b, c, arch="sm_80"):
    """One mma of a warp. a, b, c: registers (r, 32) -> d (r, 32)"""
    names, asm, n = [], [], 0
    wide = ["l" if x.dtype.itemsize == 8 else "r" for x in (c, a, b, c)]
    for count in counts:
        names.append("{" + ",".join(f"%{n + i}" for i in range(count)) + "}")
        n += count
    word = ["unsigned long long" if w == "l" else "unsigned" for w in wide]
    out = ", ".join(f'"={wide[0]}"(r{i})' for i in range(counts[0]))
    for i, (array, count) in enumerate(zip("abc", counts[1:], strict=True), 1):
        asm += [f'"{wide[i]}"((({word[i]}*){array})[{j} * 32 + threadIdx.x])' for j in range(count)]
    declared = "".join(f"{word[0]} r{i};" for i in range(counts[0]))
    stores = "".join(f"(({word[0]}*)d)[{i} * 32 + threadIdx.x] = r{i};" for i in range(counts[0]))
    code = (f'{declared} asm volatile("{text} {names[0]}, {names[1]}, {names[2]}, {names[3]};" '
            f': {out} : {", ".join(asm)}); {stores}')
    d = np.zeros((counts[0], 32), c.dtype)
    words = [np.ascontiguousarray(x).view(np.uint32) for x in (a, b, c, d)]
    kernel = simulator.RawKernel(MMA.replace("CODE", code), "k", path="kernel.cu")
    if arch != nvrtc.ARCH:
        kernel.module.compiled = nvrtc.compile_ptx(kernel.module.source, "kernel.cu", arch=arch)
        kernel.module.ptx = ptx.parse(kernel.module.compiled.ptx)
    with simulator.trace() as t:
        kernel(1, 32, words)
    return d, t.launches[0]


def pack(values, kind):
    """Integers (elements, 32) -> registers (r, 32), lowest bits first."""
    if kind == "f64":
        return values.astype(np.float64).view(np.uint64)
    if kind in ("f32", "tf32"):
        return values.astype(np.float32).view(np.uint32)
    if kind == "s32":
        return values.astype(np.int32).view(np.uint32)
    codes = {"f16": lambda: values.astype(np.float16).view(np.uint16),
             "bf16": lambda: to_bf16(values), "e5m2": lambda: values.astype(np.float16).view(
                 np.uint16) >> 8, "e4m3": lambda: e4m3(values)}.get(kind, lambda: values)()
    codes, bits = codes.astype(np.int64) & ((1 << BITS[kind]) - 1), BITS[kind]
    each = 32 // bits
    return sum(codes[i::each].astype(np.uint32) << np.uint32(bits * i) for i in range(each))


def e4m3(values):
    """Small integers -> bits, by looking for the number among all."""
    table = {}
    for code in range(127):
        exponent, mantissa = code >> 3, code & 7
        table[mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0**(exponent - 7)] = \
            code
    return np.vectorize(lambda v: table[abs(v)] | (128 if v < 0 else 0))(values)


def manual_a(shape, kind):
    """Row and column of element i in lane l, as the PTX ISA manual gives them for each shape."""
    (M, _, K), each = shape, 32 // min(BITS[kind], 32)
    lane, group, thread = np.arange(32), np.arange(32) // 4, np.arange(32) % 4
    for i in range(M * K // 32):
        register = i // each
        row = group + (8 if register % 2 and M == 16 else 0)
        yield row, thread * each + i % each + (register // (M // 8)) * 4 * each + 0 * lane


def manual_b(shape, kind):
    (_, N, K), each = shape, 32 // min(BITS[kind], 32)
    for i in range(K * N // 32):
        yield np.arange(32) % 4 * each + i % each + i // each * 4 * each, np.arange(32) // 4


def manual_c(shape):
    for i in range(shape[0] * shape[1] // 32):
        yield np.arange(32) // 4 + (8 if i >= 2 else 0), np.arange(32) % 4 * 2 + i % 2


def spread(matrix, places):
    return np.array([matrix[row, column] for row, column in places])


def gather(values, places, shape):
    matrix = np.full(shape, np.nan)
    for value, (row, column) in zip(values, places, strict=True):
        matrix[row, column] = value
    return matrix


FORMS = [("m16n8k8", "f32", "f16", "f16"), ("m16n8k16", "f32", "f16", "f16"),
         ("m16n8k8", "f16", "f16", "f16"), ("m16n8k16", "f16", "f16", "f16"),
         ("m16n8k8", "f32", "bf16", "bf16"), ("m16n8k16", "f32", "bf16", "bf16"),
         ("m16n8k4", "f32", "tf32", "tf32"), ("m16n8k8", "f32", "tf32", "tf32"),
         ("m8n8k4", "f64", "f64", "f64"),
         ("m8n8k16", "s32", "s8", "u8"), ("m16n8k16", "s32", "u8", "u8"),
         ("m16n8k32", "s32", "s8", "s8"), ("m8n8k32", "s32", "s4", "s4"),
         ("m16n8k32", "s32", "u4", "s4"), ("m16n8k64", "s32", "s4", "u4"),
         ("m16n8k16", "f32", "e4m3", "e4m3"), ("m16n8k32", "f32", "e4m3", "e5m2"),
         ("m16n8k32", "f16", "e5m2", "e4m3"),
         ("m8n8k128", "s32", "b1", "b1"), ("m16n8k128", "s32", "b1", "b1"),
         ("m16n8k256", "s32", "b1", "b1")]


@pytest.mark.parametrize("name, d, a, b", FORMS)
def test_mma_is_exact_on_small_integers(rng, name, d, a, b):
    shape = M, N, K = tuple(int(n) for n in name[1:].replace("n", " ").replace("k", " ").split())

    def numbers(kind, size):
        low, high = {"u": (0, 8), "b": (-8, 9), "s": (-8, 8)}.get(kind[0], (-4, 5))
        return rng.integers(*((0, 2) if kind == "b1" else (low, high)), size)
    A, B, C = numbers(a, (M, K)), numbers(b, (K, N)), rng.integers(-9, 10, (M, N))
    words = [pack(spread(m, p), t) for m, p, t in (
        (A, manual_a(shape, a), a), (B, manual_b(shape, b), b), (C, manual_c(shape), d))]
    counts = [len(words[2]), *(len(w) for w in words)]
    operation = ".xor.popc" if a == "b1" else ""
    result, launch = mma(f"mma.sync.aligned.{name}.row.col.{d}.{a}.{b}.{d}{operation}", counts,
                         *words, arch="sm_89" if "e" in a else "sm_80")
    if d == "f16":
        values = np.stack([(result >> s).astype(np.uint16).view(np.float16) for s in (0, 16)],
                          axis=1).reshape(-1, 32)
    else:
        values = result.view({"f32": np.float32, "s32": np.int32, "f64": np.float64}[d])
    product = (A[:, :, None] ^ B[None]).sum(1) if a == "b1" else A @ B
    assert np.array_equal(gather(values, manual_c(shape), (M, N)), product + C)
    assert launch.flops == (0 if d == "s32" else 2 * M * N * K)


def mma_sp(name, d, kind, a, b, c, metadata, selector, ordered=True):
    """One mma.sp of a warp. a, b, c: registers (r, 32); metadata: (32,) -> d (r, 32), launch"""
    groups, n = [], 0
    for count in (len(c), len(a), len(b), len(c), 1):
        groups.append(f"{{{','.join(f'%{n + i}' for i in range(count))}}}")
        n += count
    inputs = [f'"r"({array}[{i} * 32 + threadIdx.x])'
              for array, words in zip("abc", (a, b, c), strict=True) for i in range(len(words))]
    out = ", ".join(f'"=r"(r[{i}])' for i in range(len(c)))
    word = "mma.sp::ordered_metadata" if ordered else "mma.sp"
    kernel = f"""extern "C" __global__ void k(const unsigned* a, const unsigned* b,
    const unsigned* c, const unsigned* e, unsigned* d) {{
    unsigned r[{len(c)}];
    asm volatile("{word}.sync.aligned.{name}.row.col.{d}.{kind}.{kind}.{d} {', '.join(groups[:4])},"
        " {groups[4][1:-1]}, {selector};" : {out} : {", ".join(inputs)}, "r"(e[threadIdx.x]));
    for (int i = 0; i < {len(c)}; i++) d[i * 32 + threadIdx.x] = r[i];
}}"""
    result = np.zeros_like(c)
    launch = run(kernel, 1, 32, a, b, c, metadata, result)
    return result, launch


def two_of_four(rng, M, K):
    """A matrix where two of each four neighbours stay, these two, and their places."""
    places = np.sort(rng.permuted(np.tile(np.arange(4), (M, K // 4, 1)), axis=2)[..., :2], axis=2)
    values = rng.integers(-8, 9, (M, K // 4, 2)).astype(np.float64)
    full = np.zeros((M, K))
    for m in range(M):
        for chunk in range(K // 4):
            for i in range(2):
                full[m, 4 * chunk + places[m, chunk, i]] = values[m, chunk, i]
    return full, values.reshape(M, K // 2), places


def manual_metadata(rng, places, selector):
    """The metadata register of each lane, by the figures of the manual.
    Lanes that the selector leaves out hold rubbish."""
    words = rng.integers(0, 2**32, 32, np.uint32)
    half = places.shape[1] // 4                             # 16 columns: 4 chunks of 4 bits
    for group in range(8):
        for part in range(half):
            word = 0
            for i, row in enumerate((group, group + 8)):
                for chunk in range(4):
                    first, second = map(int, places[row, 4 * part + chunk])
                    word |= (first | second << 2) << 16 * i + 4 * chunk
            words[4 * group + selector * half + part] = word
    return words


SPARSE = [(name, d, kind, selector) for name, selectors in (("m16n8k16", 4), ("m16n8k32", 2))
          for d, kind in (("f32", "f16"), ("f16", "f16"), ("f32", "bf16"))
          for selector in range(selectors)]


@pytest.mark.parametrize("name, d, kind, selector", SPARSE)
def test_mma_sp_multiplies_two_of_each_four(rng, name, d, kind, selector):
    K = int(name[6:])
    full, stored, places = two_of_four(rng, 16, K)
    B, C = rng.integers(-8, 9, (K, 8)).astype(np.float64), rng.integers(-9, 10, (16, 8))
    a, b, c = (pack(spread(m, p), t) for m, p, t in (
        (stored, manual_a((16, 8, K // 2), kind), kind), (B, manual_b((16, 8, K), kind), kind),
        (C, manual_c((16, 8)), d)))
    result, launch = mma_sp(name, d, kind, a, b, c, manual_metadata(rng, places, selector),
                            selector, ordered=selector == 0)
    values = result.view(np.float32) if d == "f32" else np.stack(
        [(result >> s).astype(np.uint16).view(np.float16) for s in (0, 16)], axis=1).reshape(-1, 32)
    assert np.array_equal(gather(values, manual_c((16, 8)), (16, 8)), full @ B + C)
    assert launch.flops == 16 * 8 * K                       # half of a full product's
    assert launch.totals.flops_by_type == {f"tensor {'bf16' if kind == 'bf16' else 'fp16'}":
                                           16 * 8 * K}


@pytest.mark.parametrize("ordered, pair, says", [
    (True, (2, 1), "names the places 2 and 1: expected two places that rise"),
    (True, (3, 3), "expected two places that rise"), (False, (2, 1), None),
    (False, (3, 3), "names the places 3 and 3: expected two different places")])
def test_places_of_mma_sp(rng, ordered, pair, says):
    _, stored, places = two_of_four(rng, 16, 32)
    places[9, 5] = pair
    words = [np.zeros((4, 32), np.uint32)] * 3
    call = ("m16n8k32", "f32", "f16", *words, manual_metadata(rng, places, 1), 1, ordered)
    if says is None:
        mma_sp(*call)
        return
    with pytest.raises(simulator.KernelError, match=says) as caught:
        mma_sp(*call)
    assert caught.value.kind == "argument" and caught.value.thread == (4, 0, 0)
    assert "the metadata of row 9, columns 20 to 23" in str(caught.value)


RANDOM = [("m16n8k16", "f16", "f32"), ("m16n8k16", "bf16", "f32"), ("m16n8k8", "tf32", "f32"),
          ("m16n8k16", "f16", "f16")]


@pytest.mark.parametrize("name, kind, d", RANDOM)
def test_mma_rounds_a_sum_of_exact_products_once(rng, name, kind, d):
    shape = M, N, K = tuple(int(n) for n in name[1:].replace("n", " ").replace("k", " ").split())
    keep = {"f16": 13, "bf16": 16, "tf32": 13}[kind]        # bits of a float32 that are not held
    A, B = ((rng.normal(size=size).astype(np.float32).view(np.uint32) >> keep << keep).view(
        np.float32).astype(np.float64) for size in ((M, K), (K, N)))
    C = rng.normal(size=(M, N)).astype({"f16": np.float16, "f32": np.float32}[d])
    words = [pack(spread(m, p), t) for m, p, t in (
        (A, manual_a(shape, kind), kind), (B, manual_b(shape, kind), kind),
        (C, manual_c(shape), d))]
    result, _ = mma(f"mma.sync.aligned.{name}.row.col.{d}.{kind}.{kind}.{d}",
                    [len(words[2]), *(len(w) for w in words)], *words)
    values = result.view(np.float32) if d == "f32" else np.stack(
        [(result >> s).astype(np.uint16).view(np.float16) for s in (0, 16)], axis=1).reshape(-1, 32)
    if kind == "f16":                                       # tiny ones have fewer bits
        A, B = (m.astype(np.float16).astype(np.float64) for m in (A, B))
    assert np.array_equal(gather(values, manual_c(shape), (M, N)), (A @ B + C).astype(C.dtype))


@pytest.mark.parametrize("layouts", ["row.row", "row.col", "col.row", "col.col"])
@pytest.mark.parametrize("d", ["f16", "f32"])
def test_mma_m8n8k4_is_four_products(rng, d, layouts):
    A, B, C = (rng.integers(-8, 9, size) for size in ((4, 8, 4), (4, 4, 8), (4, 8, 8)))
    lane = np.arange(32)
    quad, upper, four = lane % 16 // 4, lane // 16 * 4, lane % 4
    row_a, row_b = layouts.split(".")
    a = np.array([A[quad, upper + four, i] if row_a == "row" else A[quad, upper + i, four]
                  for i in range(4)])
    b = np.array([B[quad, four, upper + i] if row_b == "row" else B[quad, i, upper + four]
                  for i in range(4)])
    if d == "f16":
        places = [(upper + four, 0 * lane + i) for i in range(8)]
    else:
        places = [(upper + (lane & 1) + (i & 2), (i & 4) + (lane & 2) + (i & 1)) for i in range(8)]
    c = np.array([C[quad, r, s] for r, s in places])
    counts = [4 if d == "f16" else 8, 2, 2, 4 if d == "f16" else 8]
    result, launch = mma(f"mma.sync.aligned.m8n8k4.{layouts}.{d}.f16.f16.{d}", counts,
                         pack(a, "f16"), pack(b, "f16"), pack(c, d))
    values = result.view(np.float32) if d == "f32" else np.stack(
        [(result >> s).astype(np.uint16).view(np.float16) for s in (0, 16)], axis=1).reshape(-1, 32)
    expected = A @ B + C
    assert all(np.array_equal(v, expected[quad, r, s])
               for v, (r, s) in zip(values, places, strict=True))
    assert launch.flops == 4 * 2 * 8 * 8 * 4


def one_register(text, counts, a, b, c):
    """An mma whose A and B are one number in each element and C another -> element 0 of D."""
    full = [np.full((n, 32), value, np.uint32) for n, value in zip(counts[1:], (a, b, c),
                                                                   strict=True)]
    return mma(text, counts, *full)[0][0, 0]


def test_integer_sums_wrap_or_saturate():
    counts, word = [4, 4, 2, 4], 0x7F7F7F7F
    plain = one_register("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", counts, word, word,
                         2**31 - 1)
    assert int(plain) == (2**31 - 1 + 32 * 127 * 127) % 2**32
    held = one_register("mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32", counts, word,
                        word, 2**31 - 1)
    assert int(held) == 2**31 - 1


def test_tf32_looks_at_19_bits_only():
    bits = int(np.float32(1 + 2**-10 + 2**-11).view(np.uint32))     # the last bit does not count
    d = one_register("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32", [4, 2, 1, 4], bits,
                     int(np.float32(1).view(np.uint32)), 0)
    assert d.view(np.float32) == 4 * (1 + 2**-10)


def test_sums_are_rounded_to_the_accumulator():
    one, small = 0x3C003C00, 0x10001000                             # 1 and 2^-11 in half precision
    half = one_register("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16", [2, 2, 1, 2], one,
                        small, one)                                 # 1 + 8 · 2^-11
    assert (half & 0xFFFF).astype(np.uint16).view(np.float16) == 1 + 2**-8
    overflow = one_register("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16", [2, 2, 1, 2],
                            0x7BFF7BFF, one, one)
    assert overflow == 0x7C007C00                                   # infinity
    nan = one_register("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", [4, 2, 1, 4], 0x7C007C00,
                       0, 0)
    assert nan == 0x7FFFFFFF


@pytest.mark.parametrize("text", [
    "mma.sp.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {r,r,r,r},{r,r},{r,r},{r,r,r,r},r,0;",
    "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {r,r,r,r},{r,r},{r,r},{r,r,r,r},r,4;",
    "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {r,r,r,r},{r,r},{r,r},{r,r,r,r},r,r;",
    "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {r,r,r,r},{r,r},{r,r},{r,r,r,r},r;",
    "mma.sp.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.bf16 {r,r},{r,r},{r,r},{r,r},r,0;",
    "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {r,r,r,r},{r,r,r,r},"
    "{r,r,r,r},{r,r,r,r},r,2;",
    "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {r,r,r,r},{r,r},"
    "{r,r,r,r},{r,r,r,r},r,0;",
    "mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32 {r,r,r,r},{r,r,r,r},{r,r},{r,r,r,r};",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32 {r,r,r,r},{r,r,r,r},{r,r},{r,r,r,r};",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f16 {r,r,r,r},{r,r,r,r},{r,r},{r,r};",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {r,r,r,r},{r,r},{r,r},{r,r,r,r};",
    "mma.sync.aligned.m16n8k64.row.col.s32.s8.s8.s32 {r,r,r,r},{r,r,r,r},{r,r},{r,r,r,r};",
    "mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32 {r,r},{r},{r},{r,r};",
    "mma.aligned.m8n8k16.row.col.s32.s8.s8.s32 {r,r},{r},{r},{r,r};",
    "stmatrix.sync.aligned.m8n8.x1.shared.b16 [r],{r};",
    "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {r,r},[r];",
    "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {r},[r];",
    "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32.satfinite {r,r,r,r,r,r,r,r},"
    "{r,r,r,r,r,r,r,r},{r,r,r,r,r,r,r,r},{r,r,r,r,r,r,r,r};",
    "wmma.load.a.sync.aligned.row.m16n16k32.f16 {r,r,r,r,r,r,r,r},[r];",
    "wmma.load.b.sync.aligned.row.m8n8k32.s4 {r},[r];",
])
def test_forms_that_there_are_not_are_refused(text):
    module = ptx.parse(f""".version 9.0 .target sm_80 .address_size 64
    .entry k() {{ .reg .b32 r; {text} }}""")
    with pytest.raises(simulator.Unsupported) as caught:
        decode(module.functions["k"].code[0])
    assert text.split()[0] in str(caught.value)


@pytest.mark.parametrize("guard, fine", [("", True), ("if (threadIdx.x < 32)", True),
                                         ("if (threadIdx.x < 48)", False),
                                         ("if (threadIdx.x % 2)", False),
                                         ("if (threadIdx.x >= 32) return;", True),
                                         ("if (threadIdx.x >= 48) return;", False)])
def test_mma_in_divergent_code(guard, fine):
    source = f"""#define MMA "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 " \\
            "{{%0,%1}},{{%0}},{{%0}},{{%0,%1}};"
extern "C" __global__ void k(unsigned* a) {{
    unsigned x = a[threadIdx.x], y = x;
    {guard}
        asm volatile(MMA : "+r"(x), "+r"(y));
    a[threadIdx.x] = x;
}}"""
    if fine:
        run(source, 1, 64, np.zeros(64, np.uint32))
    else:
        error = error_of(source, 1, 64, np.zeros(64, np.uint32))
        assert error.kind == "mask" and error.line == 6 and "lane" in str(error)


# ---- mma.sync by the layer: what waits to be computed together gives what each alone would give

# 64 threads work. If there are no others, products are computed by the layer. If there are 96, the
# last warp has left, and each mma is computed on its own.
PROGRAM = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 data)
{
    .reg .pred %p; .reg .b32 %t; .reg .b32 %w; .reg .b32 %x; .reg .b64 %q; .reg .b64 %s;
    .reg .b32 %r<COUNT>;
    mov.u32 %t, %tid.x;
    setp.ge.u32 %p, %t, 64;
    @%p ret;
    ld.param.u64 %q, [data];
    cvta.to.global.u64 %q, %q;
    mul.wide.u32 %s, %t, 4;
    add.s64 %q, %q, %s;
BODY
    ret;
}"""


def registers(first, count):
    return [f"%r{first + i}" for i in range(count)]


def write_program(rng, d, calm):
    """Random instructions on 4 fragments of A, 3 of B and 8 accumulators."""
    a, b = ([registers(start + n * size, size) for n in range(count)]
            for start, size, count in ((0, 4, 4), (16, 2, 3)))
    size = 2 if d == "f16" else 4
    c = [registers(22 + n * size, size) for n in range(8)]
    every = [name for group in (*a, *b, *c) for name in group]
    lines = [f"ld.global.b32 {name}, [%q + {256 * i}];" for i, name in enumerate(every)]
    for _ in range(12):
        m, n = rng.integers(1, 5), rng.integers(1, 3)
        tile = [(i, j) for i in range(m) for j in range(n)]
        for _ in range(rng.integers(1, 4)):                 # along K
            for i, j in tile if rng.random() < 0.7 else rng.permutation(tile):
                into = c[2 * i + j]
                frm = into if rng.random() < calm else c[rng.integers(8)]
                lines.append(f"mma.sync.aligned.m16n8k16.row.col.{d}.f16.f16.{d} "
                             + ", ".join("{" + ",".join(group) + "}"
                                         for group in (into, a[i], b[j], frm)) + ";")
                if rng.random() > calm:                   # other instructions in between
                    one, two = (rng.choice([name for group in c for name in group])
                                for _ in range(2))
                    lines += [[f"mov.b32 {one}, {two};"], [f"xor.b32 {a[i][0]}, {a[i][0]}, 1;"],
                              ["setp.lt.u32 %p, %t, 32;", f"@%p mov.b32 {one}, {two};"],
                              [f"mov.b32 {one}, 0;"]][rng.integers(4)]
    lines += [f"st.global.b32 [%q + {256 * i}], {name};" for i, name in enumerate(every)]
    return PROGRAM.replace("COUNT", str(len(every))).replace("BODY", "\n".join(lines)), len(every)


@pytest.mark.parametrize("d", ["f16", "f32"])
@pytest.mark.parametrize("calm", [1, 0.9, 0.5])
def test_products_of_a_layer_are_those_of_single_instructions(rng, d, calm):
    """calm: how often an accumulator stays where it is and nothing comes in between."""
    kernel = simulator.RawKernel(MMA.replace("CODE", ""), "k", path="kernel.cu")
    kernel.module.compile()
    for _ in range(2):
        text, count = write_program(rng, d, calm)
        kernel.module.ptx = ptx.parse(text)
        start = rng.normal(size=(count, 64, 2)).astype(np.float16)
        start *= np.float16(2.0) ** rng.integers(-6, 2, start.shape)
        if d == "f32":
            start[22:] = rng.normal(size=(count - 22, 64)).astype(np.float32).view(
                np.float16).reshape(-1, 64, 2)
        start[rng.integers(22, count)].reshape(-1)[:5] = np.nan
        results = []
        for threads, checks in ((64, False), (64, True), (96, False)):
            data = start.view(np.uint32)[..., 0].copy()
            with simulator.trace(checks=checks):
                kernel(1, threads, [data])
            results.append(data)
        assert np.array_equal(results[0], results[2]) and np.array_equal(results[1], results[2])
