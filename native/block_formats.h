// Packed weight formats: one struct a format, size asserted, layout in words.
#pragma once
#include <cstdint>
