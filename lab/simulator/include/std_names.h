// What kernels use of <algorithm>, <cmath> and <cstdint>. CUDA's C++ library has it too, but takes
// as long to read as a kernel takes to compile.
#pragma once
namespace std {
using ::size_t;
using ::int8_t;
using ::int16_t;
using ::int32_t;
using ::int64_t;
using ::uint8_t;
using ::uint16_t;
using ::uint32_t;
using ::uint64_t;
using ::uintptr_t;

using ::abs;
using ::acos;
using ::asin;
using ::atan;
using ::atan2;
using ::cbrt;
using ::ceil;
using ::cos;
using ::cosh;
using ::erf;
using ::erfc;
using ::exp;
using ::exp2;
using ::expm1;
using ::fabs;
using ::floor;
using ::fma;
using ::fmax;
using ::fmin;
using ::fmod;
using ::hypot;
using ::isfinite;
using ::isinf;
using ::isnan;
using ::log;
using ::log10;
using ::log1p;
using ::log2;
using ::pow;
using ::round;
using ::sin;
using ::sinh;
using ::sqrt;
using ::tan;
using ::tanh;
using ::trunc;

template <class T>
constexpr const T& min(const T& a, const T& b) {
    return b < a ? b : a;
}
template <class T>
constexpr const T& max(const T& a, const T& b) {
    return a < b ? b : a;
}
template <class T>
constexpr void swap(T& a, T& b) {
    T before = static_cast<T&&>(a);
    a = static_cast<T&&>(b);
    b = static_cast<T&&>(before);
}
}
