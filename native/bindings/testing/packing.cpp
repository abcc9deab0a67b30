// Packing and embedding rows, checked, for tests.
#include "bindings/testing/packing.h"

#include <nanobind/stl/string.h>

namespace twostroke {

Format checked_format(int format) {
  if (!can_pack(Format(format)))
    fail("tensor type " + std::to_string(format) + " has no native kernel");
  return Format(format);
}

int64_t checked_packed_bytes(Format format, int64_t n, int64_t k) {
  constexpr int64_t kMost = int64_t(1) << 31;
  if (n <= 0 || k <= 0 || n > kMost || k > kMost)
    fail("matrix of " + std::to_string(n) + " x " + std::to_string(k) +
         ": sizes must be 1 to 2^31");
  const std::optional<int64_t> bytes = packed_bytes(format, n, k);
  if (!bytes)
    fail("k = " + std::to_string(k) + " is no multiple of the block of tensor type " +
         std::to_string(int(format)));
  return *bytes;
}

void check_size(const char* what, size_t have, int64_t want) {
  if (int64_t(have) != want)
    fail(std::string(what) + " has " + std::to_string(have) + " bytes, not " +
         std::to_string(want));
}

namespace {

// Bytes of one row in the file's own layout.
int64_t stored_row_bytes(Format format, int64_t k) {
  switch (format) {
    case Format::f32:
      return 4 * k;
    case Format::f16:
    case Format::bf16:
      return 2 * k;
    case Format::q4_0:
    case Format::iq4_nl:
      return k / 32 * 18;
    case Format::q4_1:
      return k / 32 * 20;
    case Format::q5_0:
      return k / 32 * 22;
    case Format::q5_1:
      return k / 32 * 24;
    case Format::q8_0:
      return k / 32 * 34;
    case Format::q2_k:
      return k / 256 * 84;
    case Format::q3_k:
      return k / 256 * 110;
    case Format::q4_k:
      return k / 256 * 144;
    case Format::q5_k:
      return k / 256 * 176;
    case Format::q6_k:
      return k / 256 * 210;
    case Format::iq4_xs:
      return k / 256 * 136;
  }
  return -1;
}

nb::ndarray<nb::numpy, uint8_t> pack(int format_id, int64_t n, int64_t k,
                                     const Array<uint8_t>& rows) {
  const Format format = checked_format(format_id);
  const int64_t bytes = checked_packed_bytes(format, n, k);
  check_size("rows", rows.size(), n * stored_row_bytes(format, k));
  auto out = make_array<uint8_t>({static_cast<size_t>(bytes)});
  nb::gil_scoped_release release;
  pack_rows(out.data(), format, rows.data(), n, k, 0, num_pairs(n));
  return out;
}

NewFloats embed(const std::string& set, int format_id, int64_t k, const Array<uint8_t>& row,
                float scale) {
  const Format format = checked_format(format_id);
  checked_packed_bytes(format, 1, k);
  check_size("row", row.size(), stored_row_bytes(format, k));
  auto out = make_array<float>({static_cast<size_t>(k)});
  find_set(set).embed_row(out.data(), format, row.data(), k, scale);
  return out;
}

}  // namespace

void bind_packing(nb::module_& m) {
  m.def("pack", &pack, nb::arg("format"), nb::arg("n"), nb::arg("k"), nb::arg("rows").noconvert(),
        "Repack the rows of a GGUF tensor [n, k] into panels; rows and result are bytes.");
  m.def("embed_row", &embed, nb::arg("kernel_set"), nb::arg("format"), nb::arg("k"),
        nb::arg("row").noconvert(), nb::arg("scale") = 1.0f,
        "One row in GGUF layout as float32 times scale.");
}

}  // namespace twostroke
