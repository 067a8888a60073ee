// NamedMemory: names for read-only memory, which a fault there prints.
//
// A kernel that casts const away and writes to a shared parameter passes no storage that could notice. The process ends
// by SIGSEGV. A handler first names the parameter, in one write to standard error. It then passes the signal to the
// handler before it (a sanitizer's, the terminate handler's) or to the default.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace hasten::offload {

class NamedMemory {
 public:
  NamedMemory() = default;
  /// Names `num_bytes` at `begin` until the object goes. At most 8,192 ranges at a time have names; names are cut at
  /// 119 characters. Installs the handler at the first call.
  NamedMemory(const void* begin, size_t num_bytes, const std::string& name) noexcept;
  ~NamedMemory();
  NamedMemory(NamedMemory&& other) noexcept;
  NamedMemory& operator=(NamedMemory&& other) noexcept;

 private:
  int slot_ = -1;
};

/// A range of addresses in which a fault serves reads. The handler calls `serve(self, address)` in the thread that
/// reads. It returns true once the address can be read. Writes are never served. At most 256 exist at a time. Reads
/// outside of them, and reads that are not served, end the process as before.
class FaultRange {
 public:
  using Serve = bool (*)(void* self, uintptr_t address);
  FaultRange() = default;
  FaultRange(const void* begin, size_t num_bytes, Serve serve, void* self) noexcept;
  ~FaultRange();
  FaultRange(FaultRange&& other) noexcept;
  FaultRange& operator=(FaultRange&& other) noexcept;

 private:
  int slot_ = -1;
};

}  // namespace hasten::offload
