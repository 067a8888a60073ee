// An ELF file of 64 bits, mapped: symbols for addresses.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hasten/core/memory_file.h"

namespace hasten::flight {

class ElfFile {
 public:
  /// Maps the file; one that is none gives no names.
  explicit ElfFile(const std::string& path);

  /// Returns the address in the file's own numbering of a byte at this offset; 0 if it is in no loaded part.
  uint64_t address_of(uint64_t offset) const;
  /// Returns the mangled name of the function around each address; "" if none is.
  std::vector<std::string> functions(const std::vector<uint64_t>& addresses) const;
  bool has_lines() const { return has_lines_; }

 private:
  template <class T>
  const T* at(uint64_t offset, uint64_t count = 1) const;
  void look_for_tables();

  struct Table {
    uint64_t symbols, num_symbols, strings, strings_bytes;
  };
  Mapping mapping_;
  std::vector<Table> tables_;
  bool has_lines_ = false;
};

}  // namespace hasten::flight
