"""Textures against an oracle by the formulas of the programming guide, texel by texel."""

import itertools
import math
import types

import numpy as np
import pytest

from lab import simulator

from .conftest import error_of, run

READ = """extern "C" __global__ void k(cudaTextureObject_t image, const float* x, const float* y,
                                      float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = %s;
}"""
ONE, TWO = READ % "tex1D<float>(image, x[i])", READ % "tex2D<float>(image, x[i], y[i])"


def index_of(i, size, address):
    """-> the texel that stands for texel i, None for a zero."""
    if address == "wrap":
        return i % size
    if address == "mirror":
        return i % size if i // size % 2 == 0 else size - 1 - i % size
    if address == "border":
        return i if 0 <= i < size else None
    return min(max(i, 0), size - 1)


def oracle(image, places, filter, address):
    """One read of an image (D, H, W) at (x, y, z) in texels."""
    sides = []
    for place in places:
        if filter == "point":
            sides.append([(math.floor(place), 1)])
        else:
            before = math.floor(place - 0.5)
            weight = math.floor((place - 0.5 - before) * 256 + 0.5) / 256
            sides.append([(before, 1 - weight), (before + 1, weight)])
    total = 0
    for corner in itertools.product(*sides[::-1]):
        index = [index_of(n, size, address) for (n, _), size in
                 zip(corner, image.shape, strict=True)]
        texel = 0 if None in index else float(image[tuple(index)])
        total += texel * math.prod(share for _, share in corner)
    return total


def coordinates(rng, n, low, high):
    return rng.uniform(low, high, n).astype(np.float32)


@pytest.mark.parametrize("filter", ["point", "linear"])
@pytest.mark.parametrize("address", ["clamp", "border", "wrap", "mirror"])
@pytest.mark.parametrize("normalized", [False, True])
def test_two_dimensions(rng, filter, address, normalized):
    if address in ("wrap", "mirror") and not normalized:
        with pytest.raises(simulator.KernelError, match="needs normalized=True"):
            simulator.Texture(np.zeros((2, 2), np.float32), filter, address)
        return
    image, n = rng.random((5, 8)).astype(np.float32), 300
    x, y = coordinates(rng, n, -12, 20), coordinates(rng, n, -12, 20)
    if normalized:
        x, y = x / np.float32(8), y / np.float32(5)
    out = np.zeros(n, np.float32)
    run(TWO, 10, 32, simulator.Texture(image, filter, address, normalized), x, y, out, n)
    size = (np.float32(8), np.float32(5)) if normalized else (np.float32(1), np.float32(1))
    want = [oracle(image, (u * size[0], v * size[1]), filter, address)
            for u, v in zip(x, y, strict=True)]
    assert np.allclose(out, want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("filter, address", [("point", "clamp"), ("linear", "border")])
def test_three_dimensions(rng, filter, address):
    image, n = rng.random((3, 4, 5)).astype(np.float32), 200
    x, y, out = coordinates(rng, n, -2, 7), coordinates(rng, n, -2, 6), np.zeros(n, np.float32)
    run(READ % "tex3D<float>(image, x[i], y[i], x[i] - y[i])", 7, 32,
        simulator.Texture(image, filter, address), x, y, out, n)
    want = [oracle(image, place, filter, address) for place in zip(x, y, x - y, strict=True)]
    assert np.allclose(out, want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("filter", ["point", "linear"])
def test_one_dimension_in_divergent_code(rng, filter):
    row, n = rng.random(7).astype(np.float32), 64
    x, out = coordinates(rng, n, -2, 9), np.full(n, -1, np.float32)
    source = READ % "-1; if (i % 3 == 0) out[i] = tex1D<float>(image, x[i])"
    run(source, 2, 32, simulator.Texture(row, filter), x, x, out, n)
    want = [oracle(row[None], (u, 0.5), filter, "clamp") if i % 3 == 0 else -1
            for i, u in enumerate(x)]
    assert np.allclose(out, want, rtol=1e-6)


def test_a_weight_has_eight_bits_after_the_point():
    """Near a texel's centre a filter gives the texel itself, and 1/256 further the next step."""
    x = np.array([0.5, 0.5 + 1 / 1024, 0.5 + 3 / 1024, 0.5 + 1 / 256, 1.5], np.float32)
    out = np.zeros(5, np.float32)
    run(ONE, 1, 5, simulator.Texture(np.array([0, 256], np.float32), "linear"), x, x, out, 5)
    assert np.array_equal(out, [0, 0, 1, 1, 256])


def test_vectors_bytes_and_fetches(rng):
    pixels = rng.integers(0, 256, (6, 4), np.uint8)
    image, numbers = rng.random((3, 4, 4)).astype(np.float32), rng.integers(-99, 99, 8, np.int16)
    out, other = np.zeros((8, 4), np.float32), np.zeros((8, 4), np.int32)
    run("""extern "C" __global__ void k(cudaTextureObject_t a, cudaTextureObject_t b,
                                        cudaTextureObject_t c, float4* out, int4* other) {
        int i = threadIdx.x;
        uchar4 p = tex1Dfetch<uchar4>(a, i - 1);
        other[i] = make_int4(p.x, p.w, tex1Dfetch<short>(c, i), 0);
        out[i] = tex2D<float4>(b, i % 4 + 0.5f, i / 4 + 0.5f);
    }""", 1, 8, simulator.Texture(pixels, channels=4, address="border"),
        simulator.Texture(image, "linear", channels=4), simulator.Texture(numbers), out, other)
    assert np.array_equal(out, image.reshape(-1, 4)[:8])
    bordered = np.concatenate([np.zeros((1, 4)), pixels, np.zeros((1, 4))])
    assert np.array_equal(other[:, 0], bordered[:, 0])
    assert np.array_equal(other[:, 1], bordered[:, 3])
    assert np.array_equal(other[:, 2], numbers)


def test_integers_may_be_read_as_fractions():
    bytes_, signed = np.array([0, 51, 255], np.uint8), np.array([-128, 127, 0], np.int8)
    x, out = np.array([0.5, 1, 2.5], np.float32), np.zeros(3, np.float32)
    run(ONE, 1, 3, simulator.Texture(bytes_, "linear", read="normalized"), x, x, out, 3)
    assert np.allclose(out, [0, 0.1, 1])
    run(ONE, 1, 3, simulator.Texture(signed, read="normalized"), x, x, out, 3)
    assert np.array_equal(out, [-1, 1, 0])


def test_threads_may_read_different_textures(rng):
    a, b = (simulator.Texture(rng.random(32).astype(np.float32)) for _ in "ab")
    out = np.zeros(32, np.float32)
    run("""extern "C" __global__ void k(cudaTextureObject_t a, cudaTextureObject_t b, float* out) {
        out[threadIdx.x] = tex1Dfetch<float>(threadIdx.x & 1 ? a : b, threadIdx.x);
    }""", 1, 32, a, b, out)
    assert np.array_equal(out, np.where(np.arange(32) & 1, a.array, b.array))


@pytest.mark.parametrize("texture, words", [
    (np.uint64(0), "the texture 0x0, which belongs to no argument"),
    (simulator.Texture(np.zeros(4, np.float32)), "of 2 dimensions, this one has 1"),
    (simulator.Texture(np.zeros((4, 4), np.uint8)), "reads floats, the texture holds uint8"),
    (np.zeros((4, 4), np.float32), r"`image` \(cudaTextureObject_t\): takes a simulator.Texture")])
def test_a_texture_that_does_not_fit(texture, words):
    x = np.zeros(1, np.float32)
    error = error_of(TWO, 1, 1, texture, x, x, x.copy(), 1)
    assert error.kind == "argument"
    with pytest.raises(simulator.KernelError, match=words):
        raise error


@pytest.mark.parametrize("array, keywords, words", [
    (np.zeros(4), {}, "has float64, expected uint8"),
    (np.zeros((2, 2, 2, 2), np.float32), {}, "one to three axes"),
    (np.zeros((2, 3), np.float32), {"channels": 4}, "last axis of 4 channels"),
    (np.zeros(4, np.uint8), {"filter": "linear"}, 'needs floats, or read="normalized"'),
    (np.zeros(4, np.int32), {"read": "normalized"}, "8 or 16-bit integers"),
    (np.zeros(4, np.int32), {"address": "repeat"}, "has address 'repeat'")])
def test_textures_that_a_gpu_lacks(array, keywords, words):
    with pytest.raises(simulator.KernelError, match=words):
        simulator.Texture(array, **keywords)


def test_an_uninitialised_coordinate_is_found():
    source = """extern "C" __global__ void k(cudaTextureObject_t image, float* out) {
        __shared__ float s[64];
        s[threadIdx.x] = threadIdx.x;
        out[threadIdx.x] = tex1D<float>(image, s[threadIdx.x + 32]);
    }"""
    error = error_of(source, 1, 32, simulator.Texture(np.zeros(4, np.float32)),
                     np.zeros(32, np.float32))
    assert error.kind == "uninitialised"


def test_texture_references_are_refused_with_advice():
    error = error_of("texture<float, 2> image;\n" + TWO, 1, 1)
    assert error.line == 1 and "cudaTextureObject_t" in str(error)


def test_cupy_makes_the_same_texture():
    """What CuPy is asked for: a stand-in returns its arguments."""
    from lab.simulator.cuda import texture_object

    class Named:
        def __getattr__(self, name):
            return name

    def told(name):
        return lambda *args, **keywords: (name, *args, keywords)
    memory = types.SimpleNamespace(copy_from=lambda rows: setattr(memory, "rows", rows))
    objects = types.SimpleNamespace(
        ChannelFormatDescriptor=told("channel"), ResourceDescriptor=told("resource"),
        TextureDescriptor=told("texture"), TextureObject=told("object"),
        CUDAarray=lambda *args: setattr(memory, "args", args) or memory)
    cupy = types.SimpleNamespace(asarray=np.asarray, cuda=types.SimpleNamespace(
        runtime=Named(), texture=objects))
    texture = simulator.Texture(np.ones((2, 3, 4), np.uint8), "linear", "wrap", True, 4,
                                "normalized")
    made = texture_object(cupy, texture, False)
    assert memory.args == (("channel", 8, 8, 8, 8, "cudaChannelFormatKindUnsigned", {}), 3, 2, 0)
    assert memory.rows.shape == (2, 12) and made[1][2] == {"cuArr": memory}
    assert made[2] == ("texture", ("cudaAddressModeWrap",) * 2, "cudaFilterModeLinear",
                       "cudaReadModeNormalizedFloat", {"normalizedCoords": 1})
    assert texture_object(cupy, texture, False) is made
