// The scalar kernel set: bodies included under this file's own flags. Only `kernels_scalar` leaves
// this object.
#define TWOSTROKE_ISA_SCALAR 1
#include "isa/set.inc"
TWOSTROKE_KERNEL_SET(scalar)
