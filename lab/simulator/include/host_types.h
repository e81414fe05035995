// Names that a file for nvcc has without an #include of its own, through cuda_runtime.h and the
// headers of Linux. NVRTC does not know them, and many public kernels use them.
#pragma once
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

// For an integer NVRTC cannot choose between float and double; the C++ standard takes double.
#define OF_INTEGERS(name)                                                  \
    __device__ inline double name(int x) { return name((double)x); }       \
    __device__ inline double name(unsigned x) { return name((double)x); }
OF_INTEGERS(ceil)
OF_INTEGERS(cos)
OF_INTEGERS(exp)
OF_INTEGERS(fabs)
OF_INTEGERS(floor)
OF_INTEGERS(log)
OF_INTEGERS(log10)
OF_INTEGERS(log2)
OF_INTEGERS(sin)
OF_INTEGERS(sqrt)
OF_INTEGERS(tan)
#undef OF_INTEGERS
__device__ inline double pow(int x, int y) { return pow((double)x, (double)y); }
__device__ inline double pow(int x, float y) { return pow((double)x, (double)y); }
__device__ inline double pow(int x, double y) { return pow((double)x, y); }
__device__ inline double pow(float x, double y) { return pow((double)x, y); }
__device__ inline double pow(double x, float y) { return pow(x, (double)y); }
#include <std_names.h>
