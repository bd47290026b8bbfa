// Single attention and elementwise kernels for Python, over numpy arrays: for tests and the doctor.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings.hpp"
#include "dispatch.hpp"
#include "kv_layout.hpp"

namespace py = pybind11;

namespace gristmill {
namespace {

template <class T>
using Array = py::array_t<T, py::array::c_style>;

void require(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument(what);
}

template <class T>
void require_shape(const Array<T>& array, const std::vector<py::ssize_t>& shape, const char* name) {
  bool fits = array.ndim() == static_cast<py::ssize_t>(shape.size());
  for (size_t i = 0; fits && i < shape.size(); ++i) fits = array.shape(i) == shape[i];
  require(fits, std::string(name) + ": the array's shape does not fit the others");
}

// The entry that `name` has in `names`, whose order is the enumeration's.
template <class Enum>
Enum named(const std::vector<std::string>& names, const std::string& name, const char* what) {
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) return static_cast<Enum>(i);
  std::string known;
  for (const std::string& entry : names) known += (known.empty() ? "" : ", ") + entry;
  throw std::invalid_argument(std::string(what) + ": found " + name + ", expected one of " + known);
}

// ---------------------------------------------------------------- elementwise

py::tuple fill_panel(const std::string& isa, const std::string& form_name, const Array<float>& x, int width) {
  const KernelTable& table = select_table(isa);
  const auto form =
      named<ActivationForm>({"int8", "bfloat16", "float32"}, form_name, "form of the activations");
  require(x.ndim() == 2 && x.shape(1) % kActivationGroup == 0, "x: expected [tokens, a multiple of 32]");
  const py::ssize_t columns = x.shape(1);
  const bool known_width = width == 1 || width == 2 || width == 4 || width == 8 || width == 16;
  require(known_width && x.shape(0) <= width, "width: expected 1, 2, 4, 8 or 16, and no more tokens");
  const py::ssize_t bytes = form == ActivationForm::int8 ? 1 : form == ActivationForm::bfloat16 ? 2 : 4;
  Array<uint8_t> values(columns * width * bytes);
  Array<float> scales({columns / kActivationGroup, static_cast<py::ssize_t>(width)});
  Array<int32_t> sums({columns / kActivationGroup, static_cast<py::ssize_t>(width)});
  table.fill_panel(form, x.data(), columns, static_cast<int>(x.shape(0)), width, static_cast<int>(columns),
                   values.mutable_data(), scales.mutable_data(), sums.mutable_data());
  if (form != ActivationForm::int8) return py::make_tuple(values, py::none(), py::none());
  return py::make_tuple(values, scales, sums);
}

Array<float> rms_norm(const std::string& isa, const Array<float>& x, const Array<float>& weight, float eps) {
  const KernelTable& table = select_table(isa);
  require(x.ndim() == 1 && x.shape(0) > 0, "x: expected one row");
  require_shape(weight, {x.shape(0)}, "weight");
  Array<float> out(x.shape(0));
  table.rms_norm(x.data(), weight.data(), eps, static_cast<int>(x.shape(0)), out.mutable_data());
  return out;
}

Array<float> rotate(const std::string& isa, const Array<float>& head, const Array<float>& cos,
                    const Array<float>& sin) {
  const KernelTable& table = select_table(isa);
  require(head.ndim() == 1 && cos.ndim() == 1 && 2 * cos.shape(0) <= head.shape(0),
          "cos: expected half of the rotary dimensions, at most half of the head's");
  require_shape(sin, {cos.shape(0)}, "sin");
  Array<float> out(head.shape(0));
  std::copy(head.data(), head.data() + head.shape(0), out.mutable_data());
  table.rotate(out.mutable_data(), cos.data(), sin.data(), static_cast<int>(2 * cos.shape(0)));
  return out;
}

Array<float> hadamard(const std::string& isa, const Array<float>& head) {
  const KernelTable& table = select_table(isa);
  require(head.ndim() == 1 && head.shape(0) >= 1 && head.shape(0) <= kMostHeadDim, "head: expected 1 to 256 numbers");
  Array<float> out(head.shape(0));
  std::copy(head.data(), head.data() + head.shape(0), out.mutable_data());
  table.hadamard(out.mutable_data(), static_cast<int>(head.shape(0)));
  return out;
}

Array<float> gate_tile(const std::string& isa, const std::string& kind, const Array<float>& a, int n,
                       const std::optional<Array<float>>& bias) {
  const KernelTable& table = select_table(isa);
  const auto activation = named<Activation>({"silu", "gelu", "gelu_tanh"}, kind, "activation function");
  require(n >= 0 && n <= kTileRows / 2, "n: expected 0 to 16");
  require(a.ndim() == 2 && a.shape(1) == kTileRows, "a: expected [tokens, 32]");
  if (bias) require_shape(*bias, {kTileRows}, "bias");
  Array<float> y({a.shape(0), static_cast<py::ssize_t>(n)});
  table.gate_tile(activation, a.data(), static_cast<int>(a.shape(0)), n, bias ? bias->data() : nullptr,
                  y.mutable_data(), n);
  return y;
}

void store_tile(const std::string& isa, const Array<float>& a, Array<float>& y, bool add,
                const std::optional<Array<float>>& bias) {
  const KernelTable& table = select_table(isa);
  require(a.ndim() == 2 && a.shape(1) == kTileRows, "a: expected [tokens, 32]");
  require(y.ndim() == 2 && y.shape(0) == a.shape(0) && y.shape(1) <= kTileRows,
          "y: expected [tokens, n <= 32]");
  if (bias) require_shape(*bias, {y.shape(1)}, "bias");
  table.store_tile(a.data(), static_cast<int>(a.shape(0)), static_cast<int>(y.shape(1)),
                   bias ? bias->data() : nullptr, add, y.mutable_data(), y.shape(1));
}

int64_t argmax(const std::string& isa, const Array<float>& x) {
  require(x.ndim() == 1, "x: expected one row");
  return select_table(isa).argmax(x.data(), x.shape(0));
}

// bfloat16 comes as its bits.
Array<float> widen(const std::string& isa, const py::array& row) {
  const KernelTable& table = select_table(isa);
  require(row.ndim() == 1, "row: expected one row");
  Array<float> out(row.shape(0));
  const int n = static_cast<int>(row.shape(0));
  if (Array<uint16_t>::check_(row))
    table.widen(WeightKind::bfloat16, row.data(), n, out.mutable_data());
  else if (Array<float>::check_(row))
    table.widen(WeightKind::float32, row.data(), n, out.mutable_data());
  else
    throw std::invalid_argument("row: expected contiguous float32, or the bits of bfloat16 as uint16");
  return out;
}

// ---------------------------------------------------------------- attention

KvLayout kv_layout(const std::string& type, int head_dim, float key_scale, float value_scale) {
  const auto kv_type = named<KvType>({"float32", "bfloat16", "float16", "fp8", "int8", "int4"}, type,
                                     "type of the key and value cache");
  return make_kv_layout(kv_type, head_dim, key_scale, value_scale);
}

void require_units(const KvLayout& layout, const Array<uint8_t>& units) {
  require(units.ndim() == 2 && units.shape(1) == layout.unit_bytes,
          "units: expected [units, bytes of a unit]");
}

void append(const std::string& isa, const KvLayout& layout, Array<uint8_t>& units, py::ssize_t unit,
            int slot, const Array<float>& keys, const Array<float>& values) {
  const KernelTable& table = select_table(isa);
  require_units(layout, units);
  require(unit >= 0 && unit < units.shape(0) && slot >= 0 && slot < kUnitTokens, "no such slot in the units");
  require(keys.ndim() == 2 && keys.shape(1) == layout.head_dim, "keys: expected [tokens, head_dim]");
  require_shape(values, {keys.shape(0), layout.head_dim}, "values");
  require(keys.shape(0) <= kUnitTokens - slot, "more tokens than slots in the unit");
  table.append(layout, units.mutable_data() + unit * layout.unit_bytes, slot, static_cast<int>(keys.shape(0)),
               keys.data(), values.data(), layout.head_dim);
}

// Attention of rows `first` .. `first + count` over all spans, into out.
void attend_block(const KernelTable& table, AttendRows rows, const Array<float>& queries, int first,
                  int count, float* out) {
  const int dim = rows.layout.padded_dim;
  std::vector<float> weighted(static_cast<size_t>(2) * count * dim);
  std::vector<AttendState> totals(count), states(count);
  std::vector<const float*> pointers(count);
  int last_position = 0;
  for (int r = 0; r < count; ++r) {
    pointers[r] = queries.data(first + r);
    totals[r] = {-INFINITY, 0.0f, weighted.data() + r * dim};
    states[r] = {-INFINITY, 0.0f, weighted.data() + (count + r) * dim};
    last_position = std::max(last_position, rows.positions[first + r]);
  }
  rows.rows = count;
  rows.queries = pointers.data();
  rows.positions += first;
  for (int span = 0; span <= last_position / kSpanTokens; ++span) {
    table.attend_span(rows, span, states.data());
    for (int r = 0; r < count; ++r) table.merge_state(totals[r], states[r], dim);
  }
  for (int r = 0; r < count; ++r)
    table.finish_state(totals[r], rows.layout.head_dim, out + (first + r) * rows.layout.head_dim);
}

Array<float> attend(const std::string& isa, const KvLayout& layout, const Array<float>& queries,
                    const Array<int32_t>& positions, const Array<uint8_t>& units,
                    const Array<int32_t>& unit_indices, float scale, int window, float softcap) {
  const KernelTable& table = select_table(isa);
  require_units(layout, units);
  require(queries.ndim() == 2 && queries.shape(1) == layout.head_dim,
          "queries: expected [rows, head_dim]");
  require(unit_indices.ndim() == 1, "unit_indices: expected one row");
  require(window >= 0 && softcap >= 0.0f, "window and softcap: expected 0 for none, or more");
  require_shape(positions, {queries.shape(0)}, "positions");
  std::vector<const uint8_t*> table_of_units;
  for (py::ssize_t u = 0; u < unit_indices.shape(0); ++u) {
    require(unit_indices.at(u) >= 0 && unit_indices.at(u) < units.shape(0), "unit_indices: no such unit");
    table_of_units.push_back(units.data(unit_indices.at(u), 0));
  }
  const int rows = static_cast<int>(queries.shape(0));
  for (int r = 0; r < rows; ++r)
    require(positions.at(r) >= 0 && positions.at(r) < unit_indices.shape(0) * kUnitTokens,
            "positions: outside of the units");
  Array<float> out({queries.shape(0), queries.shape(1)});
  const AttendRows call{layout, table_of_units.data(), 0, nullptr, positions.data(), window, scale, softcap};
  for (int first = 0; first < rows; first += kMostAttendRows)
    attend_block(table, call, queries, first, std::min(rows - first, kMostAttendRows), out.mutable_data());
  return out;
}

}  // namespace

void bind_attention_kernels(py::module_& m) {
  using namespace py::literals;
  py::class_<KvLayout>(m, "KvLayout", "Where keys, values and scales stand in a cache unit.")
      .def_readonly("head_dim", &KvLayout::head_dim)
      .def_readonly("padded_dim", &KvLayout::padded_dim)
      .def_readonly("key_scales", &KvLayout::key_scales)
      .def_readonly("values", &KvLayout::values)
      .def_readonly("value_scales", &KvLayout::value_scales)
      .def_readonly("unit_bytes", &KvLayout::unit_bytes);
  m.def("kv_layout", &kv_layout, "kv_type"_a, "head_dim"_a, "key_scale"_a = 1.0f, "value_scale"_a = 1.0f,
        "The layout of a cache unit: 16 tokens of one kv head.");
  m.def("fill_panel", &fill_panel, "isa"_a, "form"_a, "x"_a, "width"_a,
        "Bytes of one activation panel, and for int8 the scales and sums [groups, width].");
  m.def("rms_norm", &rms_norm, "isa"_a, "x"_a, "weight"_a, "eps"_a, "x / sqrt(mean(x^2) + eps) * weight.");
  m.def("rotate", &rotate, "isa"_a, "head"_a, "cos"_a, "sin"_a, "Half-split rotary embedding of one head.");
  m.def("hadamard", &hadamard, "isa"_a, "head"_a, "One head times the Hadamard matrix, in blocks that fit.");
  m.def("gate_tile", &gate_tile, "isa"_a, "kind"_a, "a"_a, "n"_a, "bias"_a = py::none(),
        "activation(a[:, :n]) * a[:, 16:16 + n], for a tile [tokens, 32].");
  m.def("store_tile", &store_tile, "isa"_a, "a"_a, "y"_a.noconvert(), "add"_a, "bias"_a = py::none(),
        "Writes or adds a tile [tokens, 32] (+ bias) to y [tokens, n <= 32].");
  m.def("argmax", &argmax, "isa"_a, "x"_a, "Index of the first largest; -1 if a value is not finite.");
  m.def("widen", &widen, "isa"_a, "row"_a, "A row of float32, or of bfloat16 bits (uint16), as float32.");
  m.def("append", &append, "isa"_a, "layout"_a, "units"_a.noconvert(), "unit"_a, "slot"_a, "keys"_a, "values"_a,
        "Writes keys and values [tokens, head_dim] into slots of units [count, unit_bytes], from `slot` on.");
  m.def("attend", &attend, "isa"_a, "layout"_a, "queries"_a, "positions"_a, "units"_a, "unit_indices"_a,
        "scale"_a, "window"_a = 0, "softcap"_a = 0.0f,
        "Attention of rows [rows, head_dim] over the units of one sequence and kv head.");
}

}  // namespace gristmill
