// NVRTC knows these functions without a header.
#pragma once
