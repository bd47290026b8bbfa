// The sampler in the Python module: states, and one call for all rows of a step.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <string>

#include "bindings.hpp"
#include "sampling_arguments.hpp"

namespace py = pybind11;

namespace gristmill {
namespace {

void check_matrix(const Logits& logits) {
  if (logits.ndim() != 2) throw std::invalid_argument("logits must be [rows, vocabulary]");
}

void check_request(const Logits& logits, int64_t row, const SamplerState* state) {
  if (state == nullptr) throw std::invalid_argument("a sampler state is None");
  if (row < 0 || row >= logits.shape(0)) throw std::out_of_range("no row " + std::to_string(row));
  if (logits.shape(1) != state->vocab_size()) {
    throw std::invalid_argument("rows of " + std::to_string(logits.shape(1)) +
                                " logits, expected the vocabulary's " + std::to_string(state->vocab_size()));
  }
}

std::vector<Choice> sample_rows(const Logits& logits, const std::vector<int64_t>& rows,
                                const std::vector<SamplerState*>& states) {
  RowSampler sampler;
  return sample_checked(sampler, logits, nullptr, rows, states);
}

std::vector<Logprobs> logprobs_of_rows(const Logits& logits, const std::vector<int64_t>& token_ids,
                                       int32_t count) {
  check_matrix(logits);
  const float* data = logits.data();
  const int64_t vocab_size = logits.shape(1);
  if (static_cast<int64_t>(token_ids.size()) > logits.shape(0)) {
    throw std::invalid_argument("more token ids than rows");
  }
  for (const int64_t token_id : token_ids) {
    if (token_id >= 0 && token_id < vocab_size) continue;
    throw std::out_of_range("no token " + std::to_string(token_id));
  }
  const py::gil_scoped_release release;
  SamplingScratch scratch;
  std::vector<Logprobs> reports;
  reports.reserve(token_ids.size());
  for (size_t i = 0; i < token_ids.size(); ++i) {
    reports.push_back(token_logprobs(data + i * vocab_size, vocab_size, token_ids[i], count, scratch));
  }
  return reports;
}

py::tuple ranked_tuples(const Logprobs& logprobs) {
  py::tuple entries(logprobs.top.size());
  for (size_t i = 0; i < logprobs.top.size(); ++i) {
    entries[i] = py::make_tuple(logprobs.top[i].token_id, logprobs.top[i].logprob);
  }
  return entries;
}

SamplerState make_state(uint64_t seed, uint64_t completion, int64_t vocab_size,
                        const std::vector<int64_t>& prompt_token_ids,
                        const std::vector<int64_t>& end_token_ids,
                        const std::vector<std::pair<int64_t, double>>& logit_bias, double temperature,
                        int64_t top_k, double top_p, double min_p, double repetition_penalty,
                        double presence_penalty, double frequency_penalty, int64_t min_tokens,
                        int32_t logprobs, const std::vector<std::vector<int64_t>>& bad_words,
                        const std::optional<std::vector<int64_t>>& allowed_token_ids) {
  SamplingSettings settings{};
  settings.temperature = temperature;
  settings.top_k = top_k;
  settings.top_p = top_p;
  settings.min_p = min_p;
  settings.repetition_penalty = repetition_penalty;
  settings.presence_penalty = presence_penalty;
  settings.frequency_penalty = frequency_penalty;
  settings.min_tokens = min_tokens;
  settings.logprobs = logprobs;
  return SamplerState(settings, seed, completion, vocab_size, prompt_token_ids,
                      {end_token_ids, logit_bias, bad_words, allowed_token_ids});
}

void bind_state(py::module_& m) {
  py::class_<SamplerState>(m, "SamplerState", "Settings and history of one completion.")
      .def(py::init(&make_state), py::kw_only(), py::arg("seed"), py::arg("completion"),
           py::arg("vocab_size"), py::arg("prompt_token_ids"), py::arg("end_token_ids"),
           py::arg("logit_bias"), py::arg("temperature"), py::arg("top_k"), py::arg("top_p"),
           py::arg("min_p"), py::arg("repetition_penalty"), py::arg("presence_penalty"),
           py::arg("frequency_penalty"), py::arg("min_tokens"), py::arg("logprobs"),
           py::arg("bad_words") = std::vector<std::vector<int64_t>>(),
           py::arg("allowed_token_ids") = py::none())
      .def("append", &SamplerState::append, py::arg("token_id"), "Add a token that was chosen.")
      .def("uniform", [](const SamplerState& state) { return state.uniform(); },
           "A number in [0, 1) that depends on the seed, the completion and the position alone.");
}

}  // namespace

std::vector<Choice> sample_checked(RowSampler& sampler, const Logits& logits, const float* tile_maxima,
                                   const std::vector<int64_t>& rows, const std::vector<SamplerState*>& states) {
  check_matrix(logits);
  if (rows.size() != states.size()) throw std::invalid_argument("as many rows as states are expected");
  for (size_t i = 0; i < rows.size(); ++i) check_request(logits, rows[i], states[i]);
  const float* data = logits.data();
  const int64_t vocab_size = logits.shape(1);
  const py::gil_scoped_release release;
  return sampler.sample(data, tile_maxima, vocab_size, rows, states);
}

void bind_sampling(py::module_& m) {
  bind_state(m);
  py::enum_<ChoiceFault>(m, "ChoiceFault", "Why a row has no token.")
      .value("none", ChoiceFault::none)
      .value("not_finite", ChoiceFault::not_finite)
      .value("no_token", ChoiceFault::no_token);
  py::class_<Logprobs>(m, "Logprobs", "Log probabilities of one row; empty if its logits are not finite.")
      .def_readonly("finite", &Logprobs::finite)
      .def_readonly("logprob", &Logprobs::logprob)
      .def_property_readonly("top", &ranked_tuples);
  py::class_<Choice>(m, "Choice", "The token of one row, or the fault that leaves none.")
      .def_readonly("fault", &Choice::fault)
      .def_readonly("token_id", &Choice::token_id)
      .def_readonly("largest", &Choice::largest)
      .def_readonly("logprobs", &Choice::logprobs);
  m.def("sample_rows", &sample_rows, py::arg("logits"), py::arg("rows"), py::arg("states"),
        "Chooses a token for each of the rows, by one thread, and records it in its state.");
  m.def("logprobs_of_rows", &logprobs_of_rows, py::arg("logits"), py::arg("token_ids"), py::arg("count"),
        "For each row the log probability of its token and the `count` most probable tokens.");
}

}  // namespace gristmill
