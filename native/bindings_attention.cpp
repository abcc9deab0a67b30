#include "bindings.h"

namespace twostroke {
void bind_attention(nanobind::module_&) {}
}  // namespace twostroke
