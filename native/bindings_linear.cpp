#include "bindings.h"

namespace twostroke {
void bind_linear(nanobind::module_&) {}
}  // namespace twostroke
