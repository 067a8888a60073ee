// See elf.h. Every offset is checked, since files are cut short while they are rebuilt.
#include "flight/elf.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <exception>

namespace hasten::flight {

ElfFile::ElfFile(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  struct stat status {};
  try {
    if (fstat(file, &status) == 0 && S_ISREG(status.st_mode)) {
      mapping_ = Mapping(file, status.st_size, Mapping::Access::kRead);
    }
  } catch (const std::exception&) {
    // No memory for it: the addresses keep their numbers.
  }
  close(file);
  const auto* header = at<Elf64_Ehdr>(0);
  const bool is_elf = header != nullptr && std::memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 &&
                      header->e_ident[EI_CLASS] == ELFCLASS64;
  if (is_elf) {
    look_for_tables();
  } else {
    mapping_ = Mapping();
  }
}

template <class T>
const T* ElfFile::at(uint64_t offset, uint64_t count) const {
  const auto size = static_cast<uint64_t>(mapping_.size());
  if (offset > size || count > (size - offset) / sizeof(T)) return nullptr;
  return reinterpret_cast<const T*>(mapping_.data() + offset);
}

void ElfFile::look_for_tables() {
  const auto* header = at<Elf64_Ehdr>(0);
  const auto* sections = at<Elf64_Shdr>(header->e_shoff, header->e_shnum);
  if (sections == nullptr) return;
  for (int i = 0; i < header->e_shnum; ++i) {
    const Elf64_Shdr& section = sections[i];
    const bool has_symbols = section.sh_type == SHT_SYMTAB || section.sh_type == SHT_DYNSYM;
    if (has_symbols && section.sh_link < header->e_shnum) {
      const Elf64_Shdr& strings = sections[section.sh_link];
      const Table table{section.sh_offset, section.sh_size / sizeof(Elf64_Sym), strings.sh_offset, strings.sh_size};
      if (at<Elf64_Sym>(table.symbols, table.num_symbols) != nullptr && at<char>(table.strings, table.strings_bytes)) {
        tables_.push_back(table);
      }
    }
    if (header->e_shstrndx >= header->e_shnum) continue;
    const char* const name = at<char>(sections[header->e_shstrndx].sh_offset + section.sh_name, 12);
    has_lines_ = has_lines_ || (name != nullptr && std::strncmp(name, ".debug_line", 12) == 0);
  }
}

uint64_t ElfFile::address_of(uint64_t offset) const {
  const auto* header = at<Elf64_Ehdr>(0);
  const auto* parts = header == nullptr ? nullptr : at<Elf64_Phdr>(header->e_phoff, header->e_phnum);
  for (int i = 0; parts != nullptr && i < header->e_phnum; ++i) {
    const Elf64_Phdr& part = parts[i];
    if (part.p_type != PT_LOAD || offset < part.p_offset || offset >= part.p_offset + part.p_filesz) continue;
    return offset - part.p_offset + part.p_vaddr;
  }
  return 0;
}

std::vector<std::string> ElfFile::functions(const std::vector<uint64_t>& addresses) const {
  std::vector<std::string> names(addresses.size());
  for (const Table& table : tables_) {
    const auto* symbols = at<Elf64_Sym>(table.symbols, table.num_symbols);
    const auto* strings = at<char>(table.strings, table.strings_bytes);
    for (uint64_t i = 0; i < table.num_symbols; ++i) {
      const Elf64_Sym& symbol = symbols[i];
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_name >= table.strings_bytes) continue;
      for (size_t k = 0; k < addresses.size(); ++k) {
        const bool inside = addresses[k] >= symbol.st_value && addresses[k] - symbol.st_value < symbol.st_size;
        if (!inside || !names[k].empty()) continue;
        names[k].assign(strings + symbol.st_name,
                        strnlen(strings + symbol.st_name, table.strings_bytes - symbol.st_name));
      }
    }
  }
  return names;
}

}  // namespace hasten::flight
