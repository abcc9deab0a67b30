// The avx2 kernel set: bodies included under this file's own flags. Only `kernels_avx2` leaves this
// object.
#define TWOSTROKE_ISA_AVX2 1
#include "isa/set.inc"
TWOSTROKE_KERNEL_SET(avx2)
