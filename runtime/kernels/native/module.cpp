// The Python module gristmill.runtime.kernels._native.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings.hpp"
#include "dispatch.hpp"

namespace py = pybind11;

PYBIND11_MODULE(_native, m) {
  m.doc() = "Gristmill's kernels and the native engine.";
  m.def("instruction_sets", [] {
    std::vector<std::string> names;
    for (const gristmill::KernelTable* table : gristmill::available_tables()) names.emplace_back(table->name);
    return names;
  }, "The instruction sets that this machine runs, slowest first.");
  gristmill::bind_sampling(m);  // before the engine, which returns choices
  gristmill::bind_engine(m);
  gristmill::bind_measures(m);
  gristmill::bind_linear_kernels(m);
  gristmill::bind_attention_kernels(m);
}
