// Peaks of this machine, from plain reads and arithmetic loops: the ceilings beside every speed.
#pragma once
#include <cstdint>

#include "threads.h"

namespace twostroke {

enum class Peak : int32_t { fp32 = 0, bf16 = 1, int8 = 2 };

// Bytes per second of reading `bytes` of memory over and over for about `seconds`.
double read_bytes_per_s(ThreadPool&, const uint8_t* memory, int64_t bytes, double seconds);

// Operations per second (a multiply-add is two) of the widest loop that a kernel set has for the
// type, for about `seconds`; 0 where the set has no instruction of its own for that type.
double peak_ops_per_s(ThreadPool&, const char* kernel_set, Peak, double seconds);

}  // namespace twostroke
