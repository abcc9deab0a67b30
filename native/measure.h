// Peaks of this machine: plain reads and arithmetic loops, for the ceilings beside every speed.
#pragma once
#include <cstdint>

#include "threads.h"

namespace twostroke {

enum class Peak : int32_t { fp32 = 0, bf16 = 1, int8 = 2 };

// Bytes per second of reading `bytes` of memory over and over for about `seconds`.
double read_bytes_per_s(ThreadPool&, const uint8_t* memory, int64_t bytes, double seconds);

// Operations per second (a multiply-add is two) of the widest loop that a kernel set has for the
// type, for about `seconds`; 0 where the set multiplies that type by way of another.
double peak_ops_per_s(ThreadPool&, const char* kernel_set, Peak, double seconds);

}  // namespace twostroke
