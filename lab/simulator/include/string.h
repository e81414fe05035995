// NVRTC knows memcpy() and memset() without a header.
#pragma once
