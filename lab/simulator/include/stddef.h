// NVRTC knows size_t, ptrdiff_t and NULL without a header.
#pragma once
