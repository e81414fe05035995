// Names that nvcc takes from the C library of Linux without any #include, and NVRTC does not know.
#pragma once
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
