// The avx512 kernel set: bodies included under this file's own flags. Only `kernels_avx512` leaves
// this object.
#define TWOSTROKE_ISA_AVX512 1
#include "isa/set.inc"
TWOSTROKE_KERNEL_SET(avx512)
