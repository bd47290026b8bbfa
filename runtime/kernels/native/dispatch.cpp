#include "dispatch.hpp"

#include <stdexcept>

namespace gristmill {

std::vector<const KernelTable*> available_tables() {
  std::vector<const KernelTable*> tables;
  for (const KernelTable* table : {scalar_table(), avx2_table(), avx2_vnni_table(), avx512_vnni_table(),
                                   avx512_bf16_table(), amx_table()}) {
    if (table != nullptr) tables.push_back(table);
  }
  return tables;
}

const KernelTable& select_table(const std::string& name) {
  const std::vector<const KernelTable*> tables = available_tables();
  if (name.empty()) return *tables.back();
  std::string names;
  for (const KernelTable* table : tables) {
    if (name == table->name) return *table;
    names += (names.empty() ? "" : ", ") + std::string(table->name);
  }
  throw std::invalid_argument("instruction set " + name + " is not one that this machine runs: " + names);
}

}  // namespace gristmill
