// CPUID -> kernel sets, best first. Compiled without instruction-set flags and without LTO, so that
// it runs on any CPU.
#include <cstring>
#include <initializer_list>

#include "kernels.h"

namespace twostroke {

const KernelTable* kernels_scalar();
#if defined(__x86_64__)
const KernelTable* kernels_avx2();
const KernelTable* kernels_avx512();
const KernelTable* kernels_avx512_bf16_dot();
const KernelTable* kernels_avx512_bf16_fma();
#endif

namespace {
struct Sets {
  const KernelTable* list[4] = {};
  Sets() {
    int n = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 =
        avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
    if (avx512) list[n++] = kernels_avx512();
    if (avx2) list[n++] = kernels_avx2();
#endif
    list[n++] = kernels_scalar();
  }
};
}  // namespace

const KernelTable* const* kernel_sets() {
  static const Sets sets;
  return sets.list;
}

const KernelTable* kernel_set(const char* name) {
  for (auto set = kernel_sets(); *set; set++)
    if (!std::strcmp((*set)->name, name)) return *set;
  return nullptr;
}

const KernelTable* kernel_variant([[maybe_unused]] const char* name) {
#if defined(__x86_64__)
  if (kernel_set("avx512"))
    for (const KernelTable* table : {kernels_avx512_bf16_dot(), kernels_avx512_bf16_fma()})
      if (!std::strcmp(table->name, name)) return table;
#endif
  return nullptr;
}

}  // namespace twostroke
