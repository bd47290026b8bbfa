// The linear kernels of one instruction set for Python: tests run them on panels of their own.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings.hpp"
#include "dispatch.hpp"

namespace py = pybind11;

namespace gristmill {
namespace {

template <typename T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

struct Free {
  void operator()(void* p) const { std::free(p); }
};

// Memory as kernels get it: on a cache line, with no byte to spare after it.
template <typename T>
std::unique_ptr<T[], Free> aligned(int64_t count) {
  const std::size_t bytes = (static_cast<std::size_t>(count) * sizeof(T) + 63) / 64 * 64;
  void* memory = std::aligned_alloc(64, bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return std::unique_ptr<T[], Free>(static_cast<T*>(memory));
}

template <typename T>
std::unique_ptr<T[], Free> aligned_copy(const Array<T>& array) {
  std::unique_ptr<T[], Free> copy = aligned<T>(array.size());
  if (array.size() > 0) std::memcpy(copy.get(), array.data(), static_cast<std::size_t>(array.nbytes()));
  return copy;
}

void require(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument(what);
}

void require_equal(const std::string& what, int64_t found, int64_t expected) {
  if (found == expected) return;
  throw std::invalid_argument(what + ": found " + std::to_string(found) + ", expected " +
                              std::to_string(expected));
}

WeightKind kind_named(const std::string& name) {
  if (name == "int4") return WeightKind::int4;
  if (name == "int8") return WeightKind::int8;
  if (name == "bfloat16") return WeightKind::bfloat16;
  require(name == "float32", "weight kind " + name + " is none of int4, int8, bfloat16, float32");
  return WeightKind::float32;
}

ActivationForm form_named(const std::string& name) {
  if (name == "int8") return ActivationForm::int8;
  if (name == "bfloat16") return ActivationForm::bfloat16;
  require(name == "float32", "activation form " + name + " is none of int8, bfloat16, float32");
  return ActivationForm::float32;
}

bool is_integer(WeightKind kind) { return kind == WeightKind::int4 || kind == WeightKind::int8; }

int64_t tile_bytes(const Weight& weight) {
  if (!is_integer(weight.kind))
    return static_cast<int64_t>(weight.columns) * kTileRows * (weight.kind == WeightKind::float32 ? 4 : 2);
  const bool int4 = weight.kind == WeightKind::int4;
  const int64_t group = weight.group * (int4 ? 16 : 32) + (int4 ? 64 : 128) + (weight.zero_points ? 64 : 0);
  return weight.columns / weight.group * group;
}

Weight checked_weight(const std::string& kind, int rows, int columns, int group, bool zero_points) {
  Weight weight{kind_named(kind), rows, columns, group, zero_points, nullptr, 0};
  require(rows > 0 && rows % kTileRows == 0, "rows must be a multiple of " + std::to_string(kTileRows));
  require(columns > 0 && columns % kActivationGroup == 0,
          "columns must be a multiple of " + std::to_string(kActivationGroup));
  if (is_integer(weight.kind)) {
    require(group > 0 && group % kActivationGroup == 0 && columns % group == 0,
            "group must be a multiple of " + std::to_string(kActivationGroup) + " that divides columns");
  } else {
    require(group == 0 && !zero_points, "float weights have neither groups nor zero points");
  }
  weight.tile_bytes = tile_bytes(weight);
  return weight;
}

bool is_width(int width, int widest) {
  return width <= widest && (width == 1 || width == 2 || width == 4 || width == 8 || width == 16);
}

Activations checked_activations(const KernelTable& table, const Weight& weight, const std::string& form,
                                int tokens, int panel, int last) {
  Activations x{form_named(form), tokens, weight.columns, panel, last, 0, nullptr, nullptr, nullptr};
  // The scalar kernels read every width, as the oracle of all the others.
  const int widest = std::strcmp(table.name, "scalar") == 0 ? kMostPanelTokens : table.panel;
  require(is_width(panel, widest), "panel must be 1, 2, 4, 8 or 16, and at most " + std::to_string(widest));
  require(tokens > 0, "tokens must be positive");
  x.panels = (tokens + panel - 1) / panel;
  require(is_width(last, panel) && last >= tokens - (x.panels - 1) * panel,
          "last must be 1, 2, 4, 8 or 16, at most panel, and hold the remaining tokens");
  require(x.form != ActivationForm::int8 || is_integer(weight.kind),
          "int8 activations take int4 and int8 weights only");
  return x;
}

int value_bytes(ActivationForm form) {
  return form == ActivationForm::int8 ? 1 : form == ActivationForm::bfloat16 ? 2 : 4;
}

std::vector<std::string> linear_forms(const std::string& isa) {
  const KernelTable& table = select_table(isa);
  std::vector<std::string> forms;
  if (table.linear_int8 != nullptr) forms.emplace_back("int8");
  if (table.linear_float != nullptr) forms.insert(forms.end(), {"bfloat16", "float32"});
  return forms;
}

// A kernel's result [padded, rows]: all tiles times all panels, so many of both a call.
py::array_t<float> multiply(const KernelTable& table, const Weight& weight, const Activations& x, int padded,
                            int panels_a_call) {
  py::array_t<float> result({static_cast<py::ssize_t>(padded), static_cast<py::ssize_t>(weight.rows)});
  float* y = result.mutable_data();
  const auto kernel = x.form == ActivationForm::int8 ? table.linear_int8 : table.linear_float;
  const auto out = aligned<float>(static_cast<int64_t>(padded) * kTileRows);
  for (int tile = 0; tile < weight.rows / kTileRows; ++tile) {
    for (int first = 0; first < x.panels; first += panels_a_call) {
      const int panels = std::min(panels_a_call, x.panels - first);
      kernel(weight, tile, x, first, panels, out.get());
      const int start = first * x.panel, tokens = std::min(panels * x.panel, padded - start);
      for (int i = 0; i < tokens; ++i)
        std::memcpy(y + static_cast<int64_t>(start + i) * weight.rows + tile * kTileRows,
                    out.get() + static_cast<int64_t>(i) * kTileRows, kTileRows * sizeof(float));
    }
  }
  return result;
}

bool on_matrix_tiles(const KernelTable& table, const Weight& weight, const Activations& x) {
  return table.linear_tiles != nullptr && x.form == ActivationForm::bfloat16 && weight.kind != WeightKind::float32;
}

void multiply_tiles(const KernelTable& table, const Weight& weight, const Activations& x, int panels_a_call,
                    int tiles_a_call, const Sink& sink) {
  const auto scratch = aligned<uint8_t>(kLinearScratchBytes);
  const int tiles = weight.rows / kTileRows;
  for (int tile = 0; tile < tiles; tile += tiles_a_call) {
    for (int first = 0; first < x.panels; first += panels_a_call)
      table.linear_tiles(weight, tile, std::min(tiles_a_call, tiles - tile), x, first,
                         std::min(panels_a_call, x.panels - first), scratch.get(), sink);
  }
}

// The same on matrix tiles, as a step would ask for it; padding tokens stay zero.
py::array_t<float> multiply_on_tiles(const KernelTable& table, const Weight& weight, const Activations& x,
                                     int padded, int panels_a_call, int tiles_a_call) {
  py::array_t<float> result({static_cast<py::ssize_t>(padded), static_cast<py::ssize_t>(weight.rows)});
  std::fill(result.mutable_data(), result.mutable_data() + result.size(), 0.0f);
  std::vector<TileOutput> outputs;
  for (int row = 0; row < weight.rows; row += kTileRows) outputs.push_back({row, kTileRows});
  Sink sink{};
  sink.finish = Finish::write;
  sink.outputs = outputs.data();
  sink.y = result.mutable_data();
  sink.stride = weight.rows;
  multiply_tiles(table, weight, x, panels_a_call, tiles_a_call, sink);
  return result;
}

// A weight and its input in memory as kernels get it.
struct Operands {
  Weight weight;
  Activations x;
  int padded;
  std::unique_ptr<uint8_t[], Free> weights, values;
  std::unique_ptr<float[], Free> scales;
  std::unique_ptr<int32_t[], Free> sums;
};

Operands checked_operands(Weight weight, Activations x, const Array<uint8_t>& packed, const Array<uint8_t>& values,
                          const Array<float>& scales, const Array<int32_t>& sums) {
  const int padded = (x.panels - 1) * x.panel + x.last;
  const int64_t numbers = static_cast<int64_t>(padded) * x.columns;
  const int64_t groups = x.form == ActivationForm::int8 ? numbers / kActivationGroup : 0;
  require_equal("bytes of packed weights", packed.size(), weight.rows / kTileRows * weight.tile_bytes);
  require_equal("bytes of values", values.size(), numbers * value_bytes(x.form));
  require_equal("number of scales", scales.size(), groups);
  require_equal("number of sums", sums.size(), groups);
  Operands made{weight, x, padded, aligned_copy(packed), aligned_copy(values), aligned_copy(scales), aligned_copy(sums)};
  made.weight.data = made.weights.get();
  made.x.values = made.values.get();
  made.x.scales = made.scales.get();
  made.x.sums = made.sums.get();
  return made;
}

void check_call(int panels_a_call, int tiles_a_call) {
  require(panels_a_call > 0, "panels_a_call must be positive");
  require(tiles_a_call > 0 && tiles_a_call <= kMostLinearTiles,
          "tiles_a_call must be 1 to " + std::to_string(kMostLinearTiles));
}

py::array_t<float> linear_panel(const std::string& isa, const std::string& kind, const Array<uint8_t>& packed,
                                int rows, int columns, int group, bool zero_points, const std::string& form,
                                const Array<uint8_t>& values, const Array<float>& scales,
                                const Array<int32_t>& sums, int tokens, int panel, int last,
                                int panels_a_call, int tiles_a_call) {
  const KernelTable& table = select_table(isa);
  const Weight weight = checked_weight(kind, rows, columns, group, zero_points);
  const Activations x = checked_activations(table, weight, form, tokens, panel, last);
  const Operands made = checked_operands(weight, x, packed, values, scales, sums);
  check_call(panels_a_call, tiles_a_call);
  require((x.form == ActivationForm::int8 ? table.linear_int8 : table.linear_float) != nullptr,
          std::string(table.name) + " has no such linear kernel");
  if (on_matrix_tiles(table, weight, x))
    return multiply_on_tiles(table, made.weight, made.x, made.padded, panels_a_call, tiles_a_call);
  return multiply(table, made.weight, made.x, made.padded, panels_a_call);
}

py::array_t<uint8_t> gated_panels(const std::string& isa, const std::string& kind, const Array<uint8_t>& packed,
                                  int rows, int columns, int group, const Array<uint8_t>& values, int tokens,
                                  int panel, int last, int activation, int channels,
                                  const std::optional<Array<float>>& bias, int panels_a_call, int tiles_a_call) {
  const KernelTable& table = select_table(isa);
  const Weight weight = checked_weight(kind, rows, columns, group, false);
  const Activations x = checked_activations(table, weight, "bfloat16", tokens, panel, last);
  const Operands made = checked_operands(weight, x, packed, values, {}, {});
  check_call(panels_a_call, tiles_a_call);
  require(on_matrix_tiles(table, weight, x), "gated panels are made on matrix tiles only");
  require(activation >= 0 && activation <= 2, "activation must be 0, 1 or 2");
  require((channels + 15) / 16 * kTileRows == rows, "a tile holds 16 gate rows and the 16 up rows beside them");
  if (bias) require_equal("number of biases", bias->size(), rows);
  Sink sink{Finish::gate_panels, bias ? bias->data() : nullptr, nullptr, static_cast<Activation>(activation),
            channels, nullptr, 0, made.x};
  sink.panels.columns = (channels + kActivationGroup - 1) / kActivationGroup * kActivationGroup;
  const int64_t bytes = static_cast<int64_t>(made.padded) * sink.panels.columns * 2;
  const auto out = aligned<uint8_t>(bytes);
  std::memset(out.get(), 0xff, static_cast<std::size_t>(bytes));
  sink.panels.values = out.get();
  multiply_tiles(table, made.weight, made.x, panels_a_call, tiles_a_call, sink);
  return py::array_t<uint8_t>(bytes, out.get());
}

}  // namespace

void bind_linear_kernels(py::module_& m) {
  m.def("linear_forms", &linear_forms, py::arg("isa"),
        "The forms of activations that an instruction set has linear kernels for.");
  m.def("linear_panel", &linear_panel, py::arg("isa"), py::arg("kind"), py::arg("packed"), py::arg("rows"),
        py::arg("columns"), py::arg("group"), py::arg("zero_points"), py::arg("form"), py::arg("values"),
        py::arg("scales"), py::arg("sums"), py::arg("tokens"), py::arg("panel"), py::arg("last"),
        py::arg("panels_a_call") = 1, py::arg("tiles_a_call") = 1,
        "One linear over activation panels: float32 [padded tokens, rows]. Weights and panels are bytes in "
        "the kernels' layout; scales and sums are empty but for int8 activations.");
  m.def("gated_panels", &gated_panels, py::arg("isa"), py::arg("kind"), py::arg("packed"), py::arg("rows"),
        py::arg("columns"), py::arg("group"), py::arg("values"), py::arg("tokens"), py::arg("panel"),
        py::arg("last"), py::arg("activation"), py::arg("channels"), py::arg("bias") = py::none(),
        py::arg("panels_a_call") = 1, py::arg("tiles_a_call") = 1,
        "The gated channels of one linear over bfloat16 panels, as the bytes of the next one's panels.");
}

}  // namespace gristmill
