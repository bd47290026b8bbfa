// Which instruction set's kernels run.
#pragma once

#include <string>
#include <vector>

#include "kernel_table.hpp"

namespace gristmill {

// The tables that this machine can run, slowest first.
std::vector<const KernelTable*> available_tables();

// The table of that name, or the fastest for an empty one. Throws std::invalid_argument for a name
// that is unknown or that this machine can't run.
const KernelTable& select_table(const std::string& name);

}  // namespace gristmill
