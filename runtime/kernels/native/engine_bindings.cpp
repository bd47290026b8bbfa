// The engine for Python: a model from a dictionary of offsets, and steps over numpy arrays.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <optional>
#include <system_error>

#include "bindings.hpp"
#include "engine.hpp"
#include "measure.hpp"
#include "sampling_arguments.hpp"

namespace py = pybind11;

namespace gristmill {
namespace {

constexpr int kAlignment = 64;  // kernels read whole lines
constexpr int32_t kMostChannels = 1 << 29;

using Ints = py::array_t<int32_t, py::array::c_style | py::array::forcecast>;

// Offsets into the mapped file, checked against its size before they become pointers.
class Weights {
 public:
  explicit Weights(const py::buffer_info& file)
      : data_(static_cast<const uint8_t*>(file.ptr)), size_(file.size * file.itemsize) {
    if (file.ndim != 1 || (file.size > 1 && file.strides[0] != file.itemsize)) {
      throw std::invalid_argument("weights: their bytes do not follow each other");
    }
    if (reinterpret_cast<uintptr_t>(data_) % kAlignment != 0) {
      throw std::invalid_argument("weights: their address is not a multiple of " + std::to_string(kAlignment));
    }
  }

  const uint8_t* at(int64_t offset, int64_t bytes) const {
    if (offset < 0 || bytes < 0 || offset > size_ - bytes || offset % kAlignment != 0) {
      throw std::invalid_argument("weights: " + std::to_string(bytes) + " bytes at " + std::to_string(offset) +
                                  " of a file of " + std::to_string(size_));
    }
    return data_ + offset;
  }
  const float* floats(const py::handle& spec, int64_t count) const {
    if (spec.is_none()) return nullptr;
    return reinterpret_cast<const float*>(at(spec["offset"].cast<int64_t>(), count * 4));
  }

 private:
  const uint8_t* data_;
  int64_t size_;
};

template <typename T>
T named(const std::map<std::string, T>& names, const std::string& name) {
  const auto found = names.find(name);
  if (found == names.end()) throw std::invalid_argument("unknown name: " + name);
  return found->second;
}

WeightKind weight_kind(const std::string& name) {
  return named<WeightKind>({{"int4", WeightKind::int4},
                            {"int8", WeightKind::int8},
                            {"bfloat16", WeightKind::bfloat16},
                            {"float32", WeightKind::float32}},
                           name);
}

KvType kv_type(const std::string& name) {
  return named<KvType>({{"float32", KvType::float32},
                        {"bfloat16", KvType::bfloat16},
                        {"float16", KvType::float16},
                        {"fp8", KvType::fp8},
                        {"int8", KvType::int8},
                        {"int4", KvType::int4}},
                       name);
}

Activation activation(const std::string& name) {
  return named<Activation>(
      {{"silu", Activation::silu}, {"gelu", Activation::gelu}, {"gelu_tanh", Activation::gelu_tanh}}, name);
}

// What layout.py says of a tile, so that no kernel reads past the end of its weight.
int64_t tile_bytes(const Weight& weight) {
  const int64_t columns = weight.columns;
  if (weight.kind == WeightKind::bfloat16) return kTileRows * columns * 2;
  if (weight.kind == WeightKind::float32) return kTileRows * columns * 4;
  if (weight.group <= 0 || columns % weight.group != 0) throw std::invalid_argument("weights: group");
  const int64_t bits = weight.kind == WeightKind::int4 ? 4 : 8, scale = bits / 2;
  return kTileRows * columns * bits / 8 + columns / weight.group * (kTileRows * scale + 64 * weight.zero_points);
}

int round_up(int number, int to) { return (number + to - 1) / to * to; }

// Interleaved weights (gate and up) write no columns of their own: outputs stay empty.
Linear linear(const py::handle& spec, const Weights& weights, bool interleaved) {
  Linear linear{};
  linear.weight.kind = weight_kind(spec["kind"].cast<std::string>());
  linear.weight.rows = spec["rows"].cast<int32_t>();
  linear.weight.columns = spec["columns"].cast<int32_t>();
  linear.weight.group = spec["group"].cast<int32_t>();
  linear.weight.zero_points = spec["zero_points"].cast<bool>();
  if (linear.weight.rows <= 0 || linear.weight.rows % kTileRows != 0 || linear.weight.columns <= 0 ||
      linear.weight.columns % kActivationGroup != 0 || linear.weight.group % kActivationGroup != 0) {
    throw std::invalid_argument("weights: shape that no kernel reads");
  }
  const int64_t bytes = spec["bytes"].cast<int64_t>();
  linear.weight.data = weights.at(spec["offset"].cast<int64_t>(), bytes);
  linear.weight.tile_bytes = tile_bytes(linear.weight);
  if (bytes != linear.weight.tile_bytes * linear.tiles()) {
    throw std::invalid_argument("weights: " + std::to_string(bytes) + " bytes do not hold its tiles");
  }
  linear.bias = weights.floats(spec["bias"], linear.weight.rows);
  for (const py::handle& part : spec["outputs"]) {
    const int32_t features = part.cast<int32_t>();
    for (int32_t row = 0; row < features && !interleaved; row += kTileRows) {
      linear.outputs.push_back({linear.out_features + row, std::min(kTileRows, features - row)});
    }
    linear.out_features += features;
  }
  if (!interleaved && static_cast<int>(linear.outputs.size()) != linear.tiles()) {
    throw std::invalid_argument("weights: outputs and rows disagree");
  }
  return linear;
}

Norm norm(const py::handle& spec, const Weights& weights) {
  if (spec.is_none()) return {nullptr, 0, 0};
  const int32_t size = spec["size"].cast<int32_t>();
  return {weights.floats(spec, size), size, spec["eps"].cast<float>()};
}

Attention attention(const py::handle& spec, const Weights& weights) {
  Attention a{};
  a.num_heads = spec["num_heads"].cast<int32_t>();
  a.num_kv_heads = spec["num_kv_heads"].cast<int32_t>();
  a.head_dim = spec["head_dim"].cast<int32_t>();
  a.scale = spec["scale"].cast<float>();
  a.softcap = spec["softcap"].cast<float>();
  a.window = spec["window"].cast<int32_t>();
  a.rope = spec["rope"].cast<int32_t>();
  a.q_norm = norm(spec["q_norm"], weights);
  a.k_norm = norm(spec["k_norm"], weights);
  if (a.head_dim < 1 || a.head_dim > kMostHeadDim || a.num_kv_heads < 1 || a.num_heads % a.num_kv_heads != 0) {
    throw std::invalid_argument("attention: shape that no kernel reads");
  }
  return a;
}

Expert expert(const py::handle& spec, const Weights& weights, int32_t hidden_size) {
  Expert expert{linear(spec["gate_up"], weights, true), linear(spec["down"], weights, false),
                activation(spec["activation"].cast<std::string>()), spec["intermediate_size"].cast<int32_t>()};
  const int32_t size = expert.intermediate_size;
  if (size < 1 || size > kMostChannels || expert.gate_up.weight.columns != round_up(hidden_size, kActivationGroup) ||
      expert.gate_up.weight.rows != round_up(2 * size, kTileRows) ||
      expert.down.weight.columns != round_up(size, kActivationGroup) || expert.down.out_features != hidden_size) {
    throw std::invalid_argument("expert: weights that do not fit together");
  }
  return expert;
}

std::optional<Mixture> mixture(const py::handle& spec, const Weights& weights, int32_t hidden_size) {
  if (spec.is_none()) return std::nullopt;
  Mixture mixture{};
  mixture.router = linear(spec["router"], weights, false);
  for (const py::handle& each : spec["experts"]) mixture.experts.push_back(expert(each, weights, hidden_size));
  mixture.top_k = spec["top_k"].cast<int32_t>();
  mixture.normalize_top_k = spec["normalize_top_k"].cast<bool>();
  mixture.shared = spec["shared"].cast<bool>();
  mixture.shared_gate = spec["shared_gate"].cast<bool>();
  const Weight& router = mixture.router.weight;
  if (router.kind != WeightKind::float32 || router.columns != round_up(hidden_size, kActivationGroup) ||
      mixture.router.out_features != mixture.routed() + mixture.shared_gate) {
    throw std::invalid_argument("mixture: router that does not fit its experts");
  }
  if (mixture.top_k < 1 || mixture.top_k > mixture.routed() || (mixture.shared_gate && !mixture.shared)) {
    throw std::invalid_argument("mixture: " + std::to_string(mixture.top_k) + " experts a token of " +
                                std::to_string(mixture.routed()));
  }
  return mixture;
}

Layer layer(const py::handle& spec, const Weights& weights, int32_t hidden_size) {
  Layer layer{};
  layer.input_norm = norm(spec["input_norm"], weights);
  layer.mlp_norm = norm(spec["mlp_norm"], weights);
  layer.attention = attention(spec["attention"], weights);
  layer.qkv = linear(spec["qkv"], weights, false);
  layer.o = linear(spec["o"], weights, false);
  layer.mixture = mixture(spec["mixture"], weights, hidden_size);
  if (!layer.mixture) {
    layer.gate_up = linear(spec["gate_up"], weights, true);
    layer.down = linear(spec["down"], weights, false);
    layer.activation = activation(spec["activation"].cast<std::string>());
    layer.intermediate_size = spec["intermediate_size"].cast<int32_t>();
  } else if (layer.mlp_norm.weight == nullptr || layer.mlp_norm.size != hidden_size) {
    throw std::invalid_argument("mixture: norm of another size");
  }
  layer.key_scales = spec["key_scales"].cast<std::vector<float>>();
  layer.value_scales = spec["value_scales"].cast<std::vector<float>>();
  return layer;
}

Model model(const py::dict& spec, const Weights& weights) {
  Model model{};
  model.vocab_size = spec["vocab_size"].cast<int32_t>();
  model.hidden_size = spec["hidden_size"].cast<int32_t>();
  model.max_positions = spec["max_positions"].cast<int32_t>();
  const py::handle& embedding = spec["embedding"];
  model.embedding_kind = weight_kind(embedding["dtype"].cast<std::string>());
  const int64_t bytes = model.embedding_kind == WeightKind::bfloat16 ? 2 : 4;
  model.embedding = weights.at(embedding["offset"].cast<int64_t>(),
                               bytes * model.vocab_size * static_cast<int64_t>(model.hidden_size));
  model.final_norm = norm(spec["final_norm"], weights);
  model.head = linear(spec["head"], weights, false);
  for (const py::handle& rope : spec["ropes"]) {
    model.ropes.push_back({rope["inv_freq"].cast<std::vector<float>>(), rope["attention_factor"].cast<float>()});
  }
  for (const py::handle& each : spec["layers"]) {
    model.layers.push_back(layer(each, weights, model.hidden_size));
  }
  return model;
}

EngineOptions engine_options(const py::dict& options) {
  return {options["instruction_set"].cast<std::string>(),
          options["threads"].cast<int>(),
          options["cores"].cast<std::vector<int>>(),
          kv_type(options["kv_type"].cast<std::string>()),
          options["num_blocks"].cast<int>(),
          options["block_size"].cast<int>(),
          {options["integer_activations"].cast<bool>(), options["debug_nan"].cast<bool>(),
           options["profile"].cast<bool>()}};
}

// A refused thread becomes an OSError with the system's number, not a RuntimeError.
void translate_system_error(std::exception_ptr raised) {
  try {
    if (raised) std::rethrow_exception(raised);
  } catch (const std::system_error& error) {
    PyErr_SetObject(PyExc_OSError, py::make_tuple(error.code().value(), error.code().message()).ptr());
  }
}

// Holds on to the mapped file as long as the engine reads it.
class PyEngine {
 public:
  PyEngine(const py::buffer& file, const py::dict& spec, const py::dict& options)
      : file_(file.request()),
        engine_(model(spec, Weights(file_)), engine_options(options)) {}

  // `self` is this engine's Python object: the logits hold on to it, since they lie in its memory.
  py::array execute(const py::object& self, const Ints& token_ids, const Ints& starts, const Ints& lengths,
                    const Ints& block_ids, const Ints& table_starts, const Ints& logit_rows) {
    const StepInput input{token_ids.data(),
                          starts.data(),
                          lengths.data(),
                          block_ids.data(),
                          table_starts.data(),
                          logit_rows.data(),
                          static_cast<int32_t>(starts.size()),
                          static_cast<int32_t>(token_ids.size()),
                          static_cast<int32_t>(logit_rows.size()),
                          static_cast<int32_t>(block_ids.size())};
    if (lengths.size() != starts.size() || table_starts.size() != starts.size() + 1) {
      throw std::invalid_argument("a length for each start, and one more table start, are needed");
    }
    const float* logits = nullptr;
    {
      const py::gil_scoped_release release;
      logits = engine_.execute(input);
    }
    const std::vector<py::ssize_t> shape{input.rows, engine_.model().vocab_size};
    if (input.rows == 0) return py::array_t<float>(shape);
    py::array_t<float> array(shape, logits, self);
    array.attr("setflags")(py::arg("write") = false);  // the sampler knows their maxima
    return array;
  }

  std::vector<Choice> sample_rows(const Logits& logits, const std::vector<int64_t>& rows,
                                  const std::vector<SamplerState*>& states) {
    return sample_checked(engine_.sampler(), logits, engine_.tile_maxima_of(logits.data()), rows, states);
  }

  void copy_block(int source, int target) { engine_.copy_block(source, target); }

  std::map<std::string, double> seconds() const {
    std::map<std::string, double> result;
    for (int i = 0; i < static_cast<int>(Operation::count); ++i) {
      result[kOperationNames[i]] = engine_.step().seconds()[i];
    }
    return result;
  }

  std::string instruction_set() const { return engine_.kernels().name; }
  int threads() const { return engine_.threads(); }

  // By layer: the scales of keys and those of values, one a kv head, as the kernels get them.
  std::vector<std::pair<std::vector<float>, std::vector<float>>> kv_scales() const {
    std::vector<std::pair<std::vector<float>, std::vector<float>>> result;
    const std::vector<Layer>& layers = engine_.model().layers;
    for (size_t i = 0; i < layers.size(); ++i) {
      result.emplace_back();
      for (int h = 0; h < layers[i].attention.num_kv_heads; ++h) {
        const KvLayout& layout = engine_.cache().layout(static_cast<int>(i), h);
        result.back().first.push_back(layout.key_scale);
        result.back().second.push_back(layout.value_scale);
      }
    }
    return result;
  }

 private:
  py::buffer_info file_;
  Engine engine_;
};

}  // namespace

void bind_measures(py::module_& m) {
  m.def(
      "measure_bandwidth",
      [](int threads, int64_t bytes) {
        if (threads < 1 || bytes < (1 << 20)) throw std::invalid_argument("at least a thread and a megabyte");
        return measure_bandwidth(threads, bytes) / 1e9;
      },
      py::arg("threads"), py::arg("bytes"), py::call_guard<py::gil_scoped_release>(),
      "GB/s that the threads together read from memory.");
  m.def(
      "measure_compute",
      [](const std::string& isa, int threads) {
        if (threads < 1) throw std::invalid_argument("at least a thread");
        const KernelTable& kernels = select_table(isa);
        std::map<std::string, double> result;
        for (auto [name, form] : {std::pair{"int8", ActivationForm::int8},
                                  std::pair{"bfloat16", ActivationForm::bfloat16},
                                  std::pair{"float32", ActivationForm::float32}}) {
          result[name] = measure_compute(kernels, form, threads);
        }
        return result;
      },
      py::arg("isa"), py::arg("threads"), py::call_guard<py::gil_scoped_release>(),
      "Multiply-adds a second of the threads together, by form of input.");
}

void bind_engine(py::module_& m) {
  py::register_local_exception_translator(translate_system_error);
  m.def("effective_threads", effective_threads, "Threads that affinity and the control group's quota grant.");
  py::class_<PyEngine>(m, "Engine", "A model in kernel layout with its paged cache; one thread calls it.")
      .def(py::init<const py::buffer&, const py::dict&, const py::dict&>(), py::arg("file"), py::arg("model"),
           py::arg("options"))
      .def(
          "execute",
          [](const py::object& self, const Ints& token_ids, const Ints& starts, const Ints& lengths,
             const Ints& block_ids, const Ints& table_starts, const Ints& logit_rows) {
            return self.cast<PyEngine&>().execute(self, token_ids, starts, lengths, block_ids, table_starts,
                                                  logit_rows);
          },
          py::arg("token_ids"), py::arg("starts"), py::arg("lengths"), py::arg("block_ids"),
          py::arg("table_starts"), py::arg("logit_rows"),
          "Logits [rows, vocab] of one step, read-only; valid until the next call, and keeps the engine alive.")
      .def("sample_rows", &PyEngine::sample_rows, py::arg("logits"), py::arg("rows"), py::arg("states"),
           "As the function of this name, by the threads of the steps.")
      .def("copy_block", &PyEngine::copy_block, py::arg("source"), py::arg("target"),
           "Copy the keys and values of one block over another's, in all layers.")
      .def_property_readonly("seconds", &PyEngine::seconds, "Seconds by operation since the start (profile).")
      .def_property_readonly("instruction_set", &PyEngine::instruction_set)
      .def_property_readonly("threads", &PyEngine::threads)
      .def_property_readonly("kv_scales", &PyEngine::kv_scales,
                             "By layer the scales of fp8 keys and of values, one a kv head.");
}

}  // namespace gristmill
