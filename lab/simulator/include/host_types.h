// Names that nvcc takes from the C library of Linux without any #include. NVRTC does not know them,
// and many public kernels use them.
#pragma once
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
