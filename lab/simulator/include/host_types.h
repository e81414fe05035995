// A name that nvcc takes from the C library of Linux without any #include. NVRTC does not know it,
// and many public kernels use it.
#pragma once
typedef unsigned int uint;
