// NVRTC knows assert() without a header; nvcc does not. So both may include it.
#pragma once
#ifndef assert
extern "C" __device__ void __assertfail(const char*, const char*, unsigned, const char*, size_t);
#ifdef NDEBUG
#define assert(condition) ((void)0)
#else
#define assert(condition) \
    ((condition) ? (void)0 : __assertfail(#condition, __FILE__, __LINE__, __func__, 1))
#endif
#endif
