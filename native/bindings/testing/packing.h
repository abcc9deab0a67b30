// Checks of packed matrices that packing.cpp and linear.cpp share.
#pragma once
#include "bindings/testing/support.h"
#include "pack.h"

namespace twostroke {

// Each raises std::invalid_argument with the value that does not fit.
Format checked_format(int format);
int64_t checked_packed_bytes(Format, int64_t n, int64_t k);
void check_size(const char* what, size_t have, int64_t want);

}  // namespace twostroke
