// The avx512 kernel set: bodies included under this file's own flags. Only `kernels_avx512*` leave
// this object.
#define TWOSTROKE_ISA_AVX512 1
#include "isa/set.inc"
TWOSTROKE_KERNEL_SET(avx512)

namespace twostroke {
namespace {
KernelTable make_variant(const char* name, decltype(KernelTable::attention_run) attention_run) {
  KernelTable table = make_table(name);
  table.attention_run = attention_run;
  return table;
}
}  // namespace

const KernelTable* kernels_avx512_bf16_dot() {
  static const KernelTable table =
      make_variant("avx512-bf16-dot", attention::attention_run<attention::Bf16>);
  return &table;
}

const KernelTable* kernels_avx512_bf16_fma() {
  static const KernelTable table =
      make_variant("avx512-bf16-fma", attention::attention_run<attention::Bf16Fma>);
  return &table;
}
}  // namespace twostroke
