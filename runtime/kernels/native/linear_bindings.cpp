// The linear kernels of one instruction set for Python: tests run them on panels of their own.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
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

// One call's panels, and where a kernel takes several tiles, those and what it shares with other calls.
struct Call {
  int panels, tiles;
  TileReuse reuse;
};

// Tiles `tile` .. of panels `first` .. into out[tile][token][32].
void multiply_call(const KernelTable& table, const Weight& weight, int tile, const Activations& x, int first,
                   Call call, void* scratch, float* out) {
  if (scratch != nullptr) {
    table.linear_tiles(weight, tile, call.tiles, x, first, call.panels, call.reuse, scratch, out);
  } else {
    const auto kernel = x.form == ActivationForm::int8 ? table.linear_int8 : table.linear_float;
    kernel(weight, tile, x, first, call.panels, out);
  }
}

// All tiles times all panels; [padded, rows].
py::array_t<float> multiply(const KernelTable& table, const Weight& weight, const Activations& x, int padded,
                            Call most) {
  py::array_t<float> result({static_cast<py::ssize_t>(padded), static_cast<py::ssize_t>(weight.rows)});
  float* y = result.mutable_data();
  const bool on_tiles = table.linear_tiles != nullptr && x.form == ActivationForm::bfloat16 &&
                        weight.kind != WeightKind::float32;
  const auto scratch = aligned<uint8_t>(on_tiles ? kLinearScratchBytes : 64);
  if (!on_tiles) most.tiles = 1;
  const auto out = aligned<float>(static_cast<int64_t>(padded) * kTileRows * most.tiles);
  const int tiles = weight.rows / kTileRows;
  for (int tile = 0; tile < tiles; tile += most.tiles) {
    for (int first = 0; first < x.panels; first += most.panels) {
      const TileReuse reuse = most.reuse == TileReuse::none || first == 0 ? most.reuse : TileReuse::again;
      const Call call{std::min(most.panels, x.panels - first), std::min(most.tiles, tiles - tile), reuse};
      multiply_call(table, weight, tile, x, first, call, on_tiles ? scratch.get() : nullptr, out.get());
      const int start = first * x.panel, tokens = std::min(call.panels * x.panel, padded - start);
      for (int i = 0; i < call.tiles * tokens; ++i)
        std::memcpy(y + static_cast<int64_t>(start + i % tokens) * weight.rows + (tile + i / tokens) * kTileRows,
                    out.get() + static_cast<int64_t>(i) * kTileRows, kTileRows * sizeof(float));
    }
  }
  return result;
}

py::array_t<float> linear_panel(const std::string& isa, const std::string& kind, const Array<uint8_t>& packed,
                                int rows, int columns, int group, bool zero_points, const std::string& form,
                                const Array<uint8_t>& values, const Array<float>& scales,
                                const Array<int32_t>& sums, int tokens, int panel, int last,
                                int panels_a_call, int tiles_a_call, bool reuse) {
  const KernelTable& table = select_table(isa);
  Weight weight = checked_weight(kind, rows, columns, group, zero_points);
  Activations x = checked_activations(table, weight, form, tokens, panel, last);
  const int padded = (x.panels - 1) * panel + last;
  const int64_t numbers = static_cast<int64_t>(padded) * columns;
  const int64_t groups = x.form == ActivationForm::int8 ? numbers / kActivationGroup : 0;
  require_equal("bytes of packed weights", packed.size(), rows / kTileRows * weight.tile_bytes);
  require_equal("bytes of values", values.size(), numbers * value_bytes(x.form));
  require_equal("number of scales", scales.size(), groups);
  require_equal("number of sums", sums.size(), groups);
  require(panels_a_call > 0, "panels_a_call must be positive");
  require(tiles_a_call > 0 && tiles_a_call <= kMostLinearTiles,
          "tiles_a_call must be 1 to " + std::to_string(kMostLinearTiles));
  require((x.form == ActivationForm::int8 ? table.linear_int8 : table.linear_float) != nullptr,
          std::string(table.name) + " has no such linear kernel");

  const auto weight_copy = aligned_copy(packed);
  const auto value_copy = aligned_copy(values);
  const auto scale_copy = aligned_copy(scales);
  const auto sum_copy = aligned_copy(sums);
  weight.data = weight_copy.get();
  x.values = value_copy.get();
  x.scales = scale_copy.get();
  x.sums = sum_copy.get();
  const TileReuse sharing = reuse ? TileReuse::first : TileReuse::none;
  return multiply(table, weight, x, padded, Call{panels_a_call, tiles_a_call, sharing});
}

}  // namespace

void bind_linear_kernels(py::module_& m) {
  m.def("linear_forms", &linear_forms, py::arg("isa"),
        "The forms of activations that an instruction set has linear kernels for.");
  m.def("linear_panel", &linear_panel, py::arg("isa"), py::arg("kind"), py::arg("packed"), py::arg("rows"),
        py::arg("columns"), py::arg("group"), py::arg("zero_points"), py::arg("form"), py::arg("values"),
        py::arg("scales"), py::arg("sums"), py::arg("tokens"), py::arg("panel"), py::arg("last"),
        py::arg("panels_a_call") = 1, py::arg("tiles_a_call") = 1, py::arg("reuse") = false,
        "One linear over activation panels: float32 [padded tokens, rows]. Weights and panels are bytes in "
        "the kernels' layout; scales and sums are empty but for int8 activations.");
}

}  // namespace gristmill
