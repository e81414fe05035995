"""Counters of textbook kernels equal values derived by hand.

MEMORY: (requests, transactions, ideal, bytes) of each (space, operation).
A transaction is a sector of 32 bytes in global and local memory, a wavefront in shared, a word in
constant memory.
A warp of 32 floats is 128 bytes: 4 sectors.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from .conftest import run

PRAGMA = "\n#pragma unroll 1\n"          # keeps loads of neighbours apart, which the compiler joins


def floats(n):
    return np.zeros(n, np.float32)


@dataclass
class Kernel:
    body: str                           # of `extern "C" __global__ void k(PARAMETERS)`
    args: tuple
    memory: dict                        # None: not checked
    block: object = 32
    grid: object = 1
    flops: dict = None                  # by type; None: not checked
    barriers: int = 0                   # of a warp
    divergent: int = None
    others: dict = field(default_factory=dict)      # class -> warp instructions
    integer_ops: int = None
    parameters: str = "const float* a, float* b, int n"
    before: str = ""


IN, OUT = ("global", "load"), ("global", "store")
READ, WROTE = ("shared", "load"), ("shared", "store")
COPY = (1, 4, 4, 128)
TILE = """int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    int X = threadIdx.x, Y = threadIdx.y, bx = blockIdx.x * 32, by = blockIdx.y * 32;"""
MATMUL = "const float* A, const float* B, float* C, int n"
SQUARES = (floats(1024), floats(1024), floats(1024), 32)
REDUCE = """__shared__ float s[256]; int t = threadIdx.x;
    s[t] = a[t];
    __syncthreads();
    LOOP
    if (t == 0) b[0] = s[0];"""
SOFTMAX = """float m = -INFINITY, s = 0;
    for (int i = threadIdx.x; i < n; i += 32) m = fmaxf(m, a[i]);
    for (int d = 16; d > 0; d /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, d));
    for (int i = threadIdx.x; i < n; i += 32) s += expf(a[i] - m);
    for (int d = 16; d > 0; d /= 2) s += __shfl_xor_sync(~0u, s, d);
    for (int i = threadIdx.x; i < n; i += 32) b[i] = expf(a[i] - m) / s;"""
FUSED = """float v[4], m = -INFINITY, s = 0;
    for (int i = 0; i < 4; i++) m = fmaxf(m, v[i] = a[i * 32 + threadIdx.x]);
    for (int d = 16; d > 0; d /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, d));
    for (int i = 0; i < 4; i++) s += v[i] = expf(v[i] - m);
    for (int d = 16; d > 0; d /= 2) s += __shfl_xor_sync(~0u, s, d);
    for (int i = 0; i < 4; i++) b[i * 32 + threadIdx.x] = v[i] / s;"""

KERNELS = {
    # 8 warps, each 128 bytes in and out
    "copy": Kernel(
        "int i = blockIdx.x * 64 + threadIdx.x; b[i] = a[i];", (floats(256), floats(256), 0),
        {IN: (8, 32, 32, 1024), OUT: (8, 32, 32, 1024)}, 64, 4, flops={}, divergent=0),
    # 1000 elements, 32 warps; the last has 8 lanes: 4000 bytes = 125 sectors. It alone diverges
    "copy with a tail": Kernel(
        "int i = blockIdx.x * 128 + threadIdx.x; if (i < n) b[i] = a[i];",
        (floats(1000), floats(1000), 1000),
        {IN: (32, 125, 125, 4000), OUT: (32, 125, 125, 4000)}, 128, 8, divergent=1),
    # lanes 32 bytes apart: a sector each, where 128 bytes would fit in 4
    "strided copy": Kernel("b[threadIdx.x] = a[threadIdx.x * 8];", (floats(256), floats(32), 0),
                           {IN: (1, 32, 4, 128), OUT: COPY}),
    # the order of the lanes within their sectors does not matter
    "reversed copy": Kernel("b[threadIdx.x] = a[31 - threadIdx.x];", (floats(32), floats(32), 0),
                            {IN: COPY, OUT: COPY}),
    # bytes 4 to 131 lie in 5 sectors; so do the 128 of the second warp
    "misaligned by one": Kernel("b[threadIdx.x] = a[threadIdx.x + 1];", (floats(65), floats(64), 0),
                                {IN: (2, 10, 8, 256), OUT: (2, 8, 8, 256)}, 64),
    # all lanes want one float: one sector, of which 4 bytes are distinct
    "broadcast read": Kernel("b[threadIdx.x] = a[n];", (floats(32), floats(64), 9),
                             {IN: (2, 2, 2, 256), OUT: (2, 8, 8, 256)}, 64),
    # 32 lanes of 8 bytes: 8 sectors
    "float2 copy": Kernel("((float2*)b)[threadIdx.x] = ((float2*)a)[threadIdx.x];",
                          (floats(64), floats(64), 0), {IN: (1, 8, 8, 256), OUT: (1, 8, 8, 256)}),
    # 32 lanes of 16 bytes: 16 sectors
    "float4 copy": Kernel("((float4*)b)[threadIdx.x] = ((float4*)a)[threadIdx.x];",
                          (floats(128), floats(128), 0),
                          {IN: (1, 16, 16, 512), OUT: (1, 16, 16, 512)}),
    # a lane's own 4 neighbours, one after the other: each of 4 requests steps 16 bytes a lane, so
    # two lanes share a sector and each request touches all 16
    "four neighbours a lane": Kernel(
        f"{PRAGMA}for (int i = 0; i < 4; i++) b[threadIdx.x * 4 + i] = a[threadIdx.x * 4 + i];",
        (floats(128), floats(128), 0), {IN: (4, 64, 16, 512), OUT: (4, 64, 16, 512)}),
    # one field of a struct of 12 bytes: 32 · 12 = 384 bytes are 12 sectors, 128 bytes are wanted
    "one field, array of structs": Kernel(
        "b[threadIdx.x] = ((const P*)a)[threadIdx.x].y;", (floats(96), floats(32), 0),
        {IN: (1, 12, 4, 128), OUT: COPY}, before="struct P { float x, y, z; };"),
    # all three fields, one request each, each over all 12 sectors; two sums a lane
    "three fields, array of structs": Kernel(
        "P p = ((const P*)a)[threadIdx.x]; b[threadIdx.x] = p.x + p.y + p.z;",
        (floats(96), floats(32), 0), {IN: (3, 36, 12, 384), OUT: COPY}, flops={"fp32": 64},
        before="struct P { float x, y, z; };"),
    # the same from three arrays: 4 sectors a request
    "three fields, struct of arrays": Kernel(
        "int t = threadIdx.x; b[t] = a[t] + a[t + 32] + a[t + 64];", (floats(96), floats(32), 0),
        {IN: (3, 12, 12, 384), OUT: COPY}, flops={"fp32": 64}),
    # even lanes want a, odd ones c, 8 bytes apart: one request, 4 sectors of each, 128 bytes wanted
    "lanes in two arrays": Kernel(
        "b[threadIdx.x] = (threadIdx.x % 2 ? a : c)[threadIdx.x];",
        (floats(32), floats(32), floats(32)), {IN: (1, 8, 4, 128), OUT: COPY},
        parameters="const float* a, float* b, const float* c"),
    # n = 64: 4 blocks of 32 warps; a column of b: 32 sectors a request
    "transpose, naive": Kernel(
        f"{TILE} b[x * n + y] = a[y * n + x];", (floats(4096), floats(4096), 64),
        {IN: (128, 512, 512, 16384), OUT: (128, 4096, 512, 16384)}, (32, 32), (2, 2)),
    # rows in and out; the column of the tile lies in one bank: 32 wavefronts a request
    "transpose, tile": Kernel(
        f"__shared__ float s[32][32]; {TILE} s[Y][X] = a[y * n + x]; __syncthreads();"
        "b[(bx + Y) * n + by + X] = s[X][Y];", (floats(4096), floats(4096), 64),
        {IN: (128, 512, 512, 16384), OUT: (128, 512, 512, 16384),
         WROTE: (128, 128, 128, 16384), READ: (128, 4096, 128, 16384)}, (32, 32), (2, 2),
        barriers=128),
    # with rows of 33 words the column walks through all banks: (33 x + y) mod 32 = x + y
    "transpose, padded tile": Kernel(
        f"__shared__ float s[32][33]; {TILE} s[Y][X] = a[y * n + x]; __syncthreads();"
        "b[(bx + Y) * n + by + X] = s[X][Y];", (floats(4096), floats(4096), 64),
        {IN: (128, 512, 512, 16384), OUT: (128, 512, 512, 16384),
         WROTE: (128, 128, 128, 16384), READ: (128, 128, 128, 16384)}, (32, 32), (2, 2),
        barriers=128),
    # word x of row y lies at y xor x: a permutation of the banks in every row and every column
    "transpose, swizzled tile": Kernel(
        f"__shared__ float s[32][32]; {TILE} s[Y][X ^ Y] = a[y * n + x]; __syncthreads();"
        "b[(bx + Y) * n + by + X] = s[X][X ^ Y];", (floats(4096), floats(4096), 64),
        {IN: (128, 512, 512, 16384), OUT: (128, 512, 512, 16384),
         WROTE: (128, 128, 128, 16384), READ: (128, 128, 128, 16384)}, (32, 32), (2, 2),
        barriers=128),
    # d = 1 … 16: a lane in all 8 warps; 32, 64, 128: in 4, 2, 1. 47 requests of each kind, and each
    # of these warps diverges, as warp 0 at the end. 255 sums; 9 barriers of 8 warps
    "reduction, tree with a remainder": Kernel(
        REDUCE.replace("LOOP", "for (int d = 1; d < 256; d *= 2) { if (t % (2 * d) == 0)"
                               " s[t] += s[t + d]; __syncthreads(); }"),
        (floats(256), floats(1), 0),
        {IN: (8, 32, 32, 1024), OUT: (1, 1, 1, 4), WROTE: (55, 55, 55, 4 * (256 + 255)),
         READ: (95, 95, 95, 4 * (2 * 255 + 1))}, 256, flops={"fp32": 255}, barriers=72,
        divergent=48),
    # the same sums by the first threads, 2 d words apart: 4 + 2 + 1 + … = 12 requests of
    # 2, 4, 8, 8, 8, 4, 2, 1 wavefronts, 47 in all, for each of two loads and the store
    "reduction, tree with strides": Kernel(
        REDUCE.replace("LOOP", "for (int d = 1; d < 256; d *= 2) { int i = 2 * d * t; if (i < 256)"
                               " s[i] += s[i + d]; __syncthreads(); }"),
        (floats(256), floats(1), 0),
        {IN: (8, 32, 32, 1024), OUT: (1, 1, 1, 4), WROTE: (20, 55, 20, 4 * (256 + 255)),
         READ: (25, 95, 25, 4 * (2 * 255 + 1))}, 256, flops={"fp32": 255}, barriers=72,
        divergent=6),
    # the same without conflicts; warp 0 diverges for d = 16 … 1 and at the end
    "reduction, sequential": Kernel(
        REDUCE.replace("LOOP", "for (int d = 128; d > 0; d /= 2) { if (t < d) s[t] += s[t + d];"
                               " __syncthreads(); }"),
        (floats(256), floats(1), 0),
        {IN: (8, 32, 32, 1024), OUT: (1, 1, 1, 4), WROTE: (20, 20, 20, 4 * (256 + 255)),
         READ: (25, 25, 25, 4 * (2 * 255 + 1))}, 256, flops={"fp32": 255}, barriers=72,
        divergent=6),
    # 5 shuffles and 5 sums of all lanes in each of 2 warps; no shared memory
    "reduction, shuffles": Kernel(
        "float v = a[threadIdx.x]; for (int d = 16; d > 0; d /= 2)"
        " v += __shfl_down_sync(~0u, v, d); if (threadIdx.x % 32 == 0) b[threadIdx.x / 32] = v;",
        (floats(64), floats(2), 0), {IN: (2, 8, 8, 256), OUT: (2, 2, 2, 8)}, 64,
        flops={"fp32": 5 * 64}, others={"warp": 10}, divergent=2),
    # n = 32, a warp is a column of 32 rows: A 32 sectors (4 would do), B one, 32 warps · 32 steps;
    # C is a column too
    "matmul, a row a lane": Kernel(
        f"int y = threadIdx.x, x = blockIdx.x * 8 + threadIdx.y; float s = 0; {PRAGMA}"
        "for (int k = 0; k < n; k++) s += A[y * n + k] * B[k * n + x]; C[y * n + x] = s;", SQUARES,
        {IN: (2048, 33 * 1024, 5 * 1024, 2048 * 128), OUT: (32, 1024, 128, 4096)}, (32, 8), 4,
        flops={"fp32": 2 * 32**3}, parameters=MATMUL),
    # the lanes of a warp along the columns: A one sector, B four
    "matmul, coalesced": Kernel(
        f"int x = threadIdx.x, y = blockIdx.x * 8 + threadIdx.y; float s = 0; {PRAGMA}"
        "for (int k = 0; k < n; k++) s += A[y * n + k] * B[k * n + x]; C[y * n + x] = s;", SQUARES,
        {IN: (2048, 5 * 1024, 5 * 1024, 2048 * 128), OUT: (32, 128, 128, 4096)}, (32, 8), 4,
        flops={"fp32": 2 * 32**3}, parameters=MATMUL),
    # blocks of 16 x 16: a warp is two rows of 16, so A 2 sectors (8 bytes: 1 would do), B 2
    "matmul, 16 x 16 blocks": Kernel(
        "int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y; float s = 0;"
        f"{PRAGMA}for (int k = 0; k < n; k++) s += A[y * n + k] * B[k * n + x]; C[y * n + x] = s;",
        SQUARES, {IN: (2048, 4096, 3072, 2048 * 128), OUT: (32, 128, 128, 4096)}, (16, 16), (2, 2),
        flops={"fp32": 2 * 32**3}, parameters=MATMUL),
    # two tiles of 16: 2 · 2 requests for each of 32 warps; in shared memory 2 loads a product. 2
    # words or 16 words, never two of one bank
    "matmul, tiled": Kernel(
        "__shared__ float p[16][16], q[16][16]; int X = threadIdx.x, Y = threadIdx.y;"
        "int x = blockIdx.x * 16 + X, y = blockIdx.y * 16 + Y; float s = 0;"
        "for (int k = 0; k < n; k += 16) {"
        "p[Y][X] = A[y * n + k + X]; q[Y][X] = B[(k + Y) * n + x]; __syncthreads();"
        f"{PRAGMA}for (int j = 0; j < 16; j++) s += p[Y][j] * q[j][X]; __syncthreads(); }}"
        "C[y * n + x] = s;", SQUARES,
        {IN: (128, 512, 512, 16384), OUT: (32, 128, 128, 4096), WROTE: (128, 128, 128, 16384),
         READ: (2048, 2048, 2048, 2048 * 128)}, (16, 16), (2, 2), flops={"fp32": 2 * 32**3},
        barriers=128, parameters=MATMUL),
    # a thread has 4 rows: 4 + 1 loads for 4 products, 5/8 of those of one row; A's tile is 4 pieces
    # of 32 bytes a warp, B's a row of 128: 8 warps · 4 tiles · 2 requests of 4 sectors
    "matmul, four rows a thread": Kernel(
        "__shared__ float p[32][8], q[8][32]; int X = threadIdx.x, Y = threadIdx.y, t = Y * 32 + X;"
        "float s[4] = {}; for (int k = 0; k < n; k += 8) {"
        "p[t / 8][t % 8] = A[t / 8 * n + k + t % 8];"
        "q[Y][X] = B[(k + Y) * n + X]; __syncthreads();"
        f"{PRAGMA}for (int j = 0; j < 8; j++) {{ float v = q[j][X];"
        "for (int i = 0; i < 4; i++) s[i] += p[Y * 4 + i][j] * v; } __syncthreads(); }"
        "for (int i = 0; i < 4; i++) C[(Y * 4 + i) * n + X] = s[i];", SQUARES,
        {IN: (64, 256, 256, 8192), OUT: (32, 128, 128, 4096), WROTE: (64, 64, 64, 8192),
         READ: (1280, 1280, 1280, 1280 * 128)}, (32, 8), 1, flops={"fp32": 2 * 32**3}, barriers=64,
        parameters=MATMUL),
    # 8 warps read 128 bytes and hit 32 different counters each; 2 warps clear and add up 64
    "histogram, shared atomics": Kernel(
        "__shared__ int h[64]; int t = threadIdx.x; if (t < 64) h[t] = 0; __syncthreads();"
        "atomicAdd(&h[a[t] & 63], 1); __syncthreads(); if (t < 64) atomicAdd(&b[t], h[t]);",
        (np.arange(256, dtype=np.int32), np.zeros(64, np.int32)),
        {IN: (8, 32, 32, 1024), WROTE: (2, 2, 2, 256), READ: (2, 2, 2, 256),
         ("shared", "atomic"): (8, 8, 8, 1024), ("global", "atomic"): (2, 8, 8, 256)}, 256,
        barriers=16, flops={}, divergent=0, parameters="const int* a, int* b"),
    # a[t], a[t + 1], a[t + 2]: 4, 5 and 5 sectors for each of 2 warps; a product and two fmas
    "stencil": Kernel(
        "int t = threadIdx.x; b[t] = 0.25f * a[t] + 0.5f * a[t + 1] + 0.25f * a[t + 2];",
        (floats(66), floats(64), 0), {IN: (6, 28, 24, 768), OUT: (2, 8, 8, 256)}, 64,
        flops={"fp32": 5 * 64}),
    # every element once, shifted by one: 5 sectors a warp, and one for each end; 3 shared loads
    "stencil, shared memory": Kernel(
        "__shared__ float s[66]; int t = threadIdx.x; s[t + 1] = a[t + 1]; if (t == 0) s[0] = a[0];"
        "if (t == 63) s[65] = a[65]; __syncthreads();"
        "b[t] = 0.25f * s[t] + 0.5f * s[t + 1] + 0.25f * s[t + 2];", (floats(66), floats(64), 0),
        {IN: (4, 12, 10, 264), OUT: (2, 8, 8, 256), WROTE: (4, 4, 4, 264), READ: (6, 6, 6, 768)},
        64, flops={"fp32": 5 * 64}, barriers=2, divergent=2),
    # 128 columns for one warp: 4 requests a pass, 3 passes; two reductions of 5 shuffles
    "softmax, three passes": Kernel(
        SOFTMAX, (floats(128), floats(128), 128),
        {IN: (12, 48, 48, 1536), OUT: (4, 16, 16, 512)}, others={"warp": 10}, divergent=0),
    # the row stays in registers: one pass
    "softmax, fused": Kernel(
        FUSED, (floats(128), floats(128), 128), {IN: (4, 16, 16, 512), OUT: (4, 16, 16, 512)},
        others={"warp": 10}, divergent=0),
    # a warp reads one word of constant memory; then 32 words, one after the other
    "constant memory": Kernel(
        "int t = threadIdx.x; b[t] = w[n] * w[t];", (floats(32), floats(32), 3),
        {OUT: COPY, ("const", "load"): (2, 33, 2, 256)}, flops={"fp32": 32},
        before="__constant__ float w[64] = {1, 2, 3};"),
    # two wide stores fill 8 words a lane: 8 · 128 bytes. Then a word of its own for each of 8
    # neighbours: a sector each, though 4 hold them all if lanes agree
    "local array": Kernel(
        "int t = threadIdx.x; float4 v[2] = {{1, 2, 3, 4}, {5, 6, 7, 8}};"
        "b[t] = ((float*)v)[(t + n) % 8];", (floats(32), floats(32), 8),
        {OUT: COPY, ("local", "store"): (2, 32, 32, 1024), ("local", "load"): (1, 32, 4, 128)}),
    # 16 bytes a lane past the registers: 16 sectors out of global, 4 wavefronts into shared memory
    "cp.async": Kernel(
        "__shared__ float4 s[32]; int t = threadIdx.x;"
        "__pipeline_memcpy_async(&s[t], &((const float4*)a)[t], 16); __pipeline_commit();"
        "__pipeline_wait_prior(0); __syncwarp(); ((float4*)b)[t] = s[31 - t];",
        (floats(128), floats(128), 0),
        {IN: (1, 16, 16, 512), OUT: (1, 16, 16, 512), WROTE: (1, 4, 4, 512), READ: (1, 4, 4, 512)},
        before="#include <cuda_pipeline.h>"),
    # 16 · 8 · 16 products and sums for the warp; A 4 registers, B and C 2 of 16-bit pairs
    "mma.sync, fp16": Kernel(
        'unsigned x = 0, d, e; asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16'
        ' {%0, %1}, {%2, %2, %2, %2}, {%2, %2}, {%2, %2};" : "=r"(d), "=r"(e) : "r"(x));'
        "b[threadIdx.x] = d + e;", (floats(1), floats(32), 0), {OUT: COPY},
        flops={"tensor fp16": 2 * 16 * 8 * 16}, others={"tensor core": 1}),
    # 8-bit integers, 32 deep, make no floating-point operation
    "mma.sync, int8": Kernel(
        'int x = 0, d, e, f, g; asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32'
        ' {%0, %1, %2, %3}, {%4, %4, %4, %4}, {%4, %4}, {%4, %4, %4, %4};"'
        ' : "=r"(d), "=r"(e), "=r"(f), "=r"(g) : "r"(x)); b[0] = d;',
        (floats(1), floats(32), 0), {OUT: (1, 1, 1, 128)}, flops={}, others={"tensor core": 1},
        integer_ops=2 * 16 * 8 * 32),
    # 1-bit elements, 256 deep, neither
    "mma.sync, 1 bit": Kernel(
        'int x = 0, d, e, f, g; asm volatile("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.xor'
        '.popc {%0, %1, %2, %3}, {%4, %4, %4, %4}, {%4, %4}, {%4, %4, %4, %4};"'
        ' : "=r"(d), "=r"(e), "=r"(f), "=r"(g) : "r"(x)); b[0] = d;',
        (floats(1), floats(32), 0), {OUT: (1, 1, 1, 128)}, flops={}, others={"tensor core": 1},
        integer_ops=2 * 16 * 8 * 256),
    # 16 · 16 · 16 products and sums on halves, with the accumulator in fp32: fp16 goes in
    "wmma": Kernel(
        "using namespace nvcuda::wmma; fragment<matrix_a, 16, 16, 16, half, row_major> p;"
        "fragment<matrix_b, 16, 16, 16, half, row_major> q;"
        "fragment<accumulator, 16, 16, 16, float> r; fill_fragment(p, 1); fill_fragment(q, 2);"
        "fill_fragment(r, 0); mma_sync(r, p, q, r); store_matrix_sync(b, r, 16, mem_row_major);",
        (floats(1), floats(256), 0), None, flops={"tensor fp16": 2 * 16**3},
        others={"tensor core": 1}, before="#include <mma.h>\n#include <cuda_fp16.h>"),
    # two fp16 products and sums a lane
    "half2 fma": Kernel(
        "half2 v = ((const half2*)a)[threadIdx.x]; ((half2*)b)[threadIdx.x] = __hfma2(v, v, v);",
        (floats(32), floats(32), 0), {IN: COPY, OUT: COPY}, flops={"fp16": 4 * 32},
        before="#include <cuda_fp16.h>"),
    # 8 bytes a lane, 8 sectors; a product and a sum in double precision
    "daxpy": Kernel(
        "y[threadIdx.x] += a * x[threadIdx.x];", (2.0, np.zeros(32), np.zeros(32)),
        {IN: (2, 16, 16, 512), OUT: (1, 8, 8, 256)}, flops={"fp64": 64},
        parameters="double a, const double* x, double* y"),
    # one matrix of 8 rows of 16 bytes, whose addresses come from 8 lanes: one wavefront
    "ldmatrix, one matrix": Kernel(
        "__shared__ float4 s[32]; int t = threadIdx.x; s[t] = ((const float4*)a)[t]; __syncwarp();"
        "unsigned p, at = __cvta_generic_to_shared(&s[t]);"
        'asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(p) : "r"(at));'
        "b[t] = p;", (floats(128), floats(32), 0),
        {IN: (1, 16, 16, 512), OUT: COPY, WROTE: (1, 4, 4, 512), READ: (1, 1, 1, 128)}),
    # four matrices of 8 rows of 16 bytes: 512 bytes, 4 wavefronts
    "ldmatrix": Kernel(
        "__shared__ float4 s[32]; int t = threadIdx.x; s[t] = ((const float4*)a)[t]; __syncwarp();"
        "unsigned p, q, r, u; unsigned at = __cvta_generic_to_shared(&s[t]);"
        'asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"'
        ' : "=r"(p), "=r"(q), "=r"(r), "=r"(u) : "r"(at)); b[t] = p + q + r + u;',
        (floats(128), floats(32), 0),
        {IN: (1, 16, 16, 512), OUT: COPY, WROTE: (1, 4, 4, 512), READ: (1, 4, 4, 512)}),
}


@pytest.mark.parametrize("name", KERNELS)
def test_counters_equal_the_hand_derived(name):
    k = KERNELS[name]
    source = f'{k.before}\nextern "C" __global__ void k({k.parameters}) {{ {k.body} }}'
    launch = run(source, k.grid, k.block, *k.args)
    total = launch.totals
    if k.memory is not None:
        assert {key: (c.requests, c.transactions, c.ideal, c.bytes)
                for key, c in total.memory.items()} == k.memory
    assert total.barriers == k.barriers
    if k.flops is not None:
        assert total.flops_by_type == k.flops
        assert launch.flops == sum(k.flops.values())
    if k.divergent is not None:
        assert total.divergent == k.divergent
    if k.integer_ops is not None:
        assert total.integer_ops == k.integer_ops
    assert {kind: total.instructions[kind] for kind in k.others} == k.others
    sums = sum(sum(line.instructions.values()) for line in launch.lines.values())
    assert sums == launch.steps == sum(total.instructions.values())


def test_every_kernel_has_its_derivation():
    text = Path(__file__).read_text(encoding="utf-8")
    commented = re.findall(r'    # [^\n]*\n    "([^"]+)": Kernel', text)
    assert commented == list(KERNELS) and len(KERNELS) >= 20
