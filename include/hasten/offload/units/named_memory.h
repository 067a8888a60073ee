// NamedMemory: names for read-only memory, which a fault there prints.
//
// A kernel that casts const away and writes to a shared parameter passes no storage that could notice; the process
// ends by SIGSEGV. A handler says before which parameter it was, in one write to standard error, and hands on to
// the handler before it (a sanitizer's, the terminate handler's) or to the default.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace hasten::offload {

class NamedMemory {
 public:
  NamedMemory() = default;
  /// Names `num_bytes` at `begin` until the object goes. Of more than 8,192 at a time the rest has no names; names
  /// are cut at 119 characters. Installs the handler at the first call.
  /// Collective: no. Blocks: no. Throws: nothing.
  NamedMemory(const void* begin, size_t num_bytes, const std::string& name) noexcept;
  ~NamedMemory();
  NamedMemory(NamedMemory&& other) noexcept;
  NamedMemory& operator=(NamedMemory&& other) noexcept;

 private:
  int slot_ = -1;
};

/// A range of addresses in which reads are served by a fault: `serve(self, address)` is called in the handler, in the thread
/// that reads, and returns true once the address can be read. Writes are never served. At most 256 at a time; the rest, and
/// reads that are not served, end the process as they would have.
class FaultRange {
 public:
  using Serve = bool (*)(void* self, uintptr_t address);
  FaultRange() = default;
  /// Collective: no. Blocks: no. Throws: nothing.
  FaultRange(const void* begin, size_t num_bytes, Serve serve, void* self) noexcept;
  ~FaultRange();
  FaultRange(FaultRange&& other) noexcept;
  FaultRange& operator=(FaultRange&& other) noexcept;

 private:
  int slot_ = -1;
};

}  // namespace hasten::offload
