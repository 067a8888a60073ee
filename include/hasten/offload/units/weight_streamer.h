// WeightStreamer: weights over mapped files that are read just before operators use them, and dropped behind.
//
// It works on operators, so modules need no hooks, and a weight that is used without calling its module is found, too.
// The tensors stay where they are: an operator reads the mapping, and this class decides which of its pages are there.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hasten/offload/units/mapped_region.h"

namespace hasten::offload {

struct StreamPiece {
  std::shared_ptr<MappedRegion> region = {};  ///< null for a tensor in the heap, which goes to a device
  uint64_t offset = 0, bytes = 0;
};

struct StreamUnit {
  std::string name = {};
  std::vector<std::string> tensor_names = {};
  std::vector<at::Tensor> tensors = {};  ///< over the pieces, in their order
  std::vector<StreamPiece> pieces = {};
  bool streamed = true;  ///< false: stays once it has been read
  int64_t bytes() const noexcept;
};

/// What happens to the page cache's copy of a unit that leaves this process's memory.
enum class PageCache {
  kAuto,  ///< stays while the streamed units fit in what the process may still take (plan::available_memory_bytes),
          ///< else goes
  kKeep,  ///< stays: later reads are from memory, and the kernel drops it when it needs the room
  kDrop,  ///< goes: the limit holds for the process and its part of the cache together
};

struct StreamCounts {
  int64_t reads = 0, drops = 0;
  int64_t resident_bytes = 0;  ///< of units that writes have made resident
};

/// Keeps the units of some tensors in memory while it exists.
class WeightPin {
 public:
  /// Reads the units that stream these tensors. Tensors that nothing streams are left alone. `writable`: the units stay
  /// in memory from now on, so that writes through pointers last.
  /// Blocks: on the files. Throws: DataError if a file was written to or cannot be read.
  explicit WeightPin(const std::vector<at::Tensor>& tensors, bool writable = false);
  ~WeightPin();
  WeightPin(const WeightPin&) = delete;
  WeightPin& operator=(const WeightPin&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Several threads may run the model: each has its units in use, and its own next one is read ahead.
class WeightStreamer {
 public:
  /// Intercepts the tensors' operators.
  explicit WeightStreamer(std::vector<StreamUnit> units, PageCache page_cache = PageCache::kAuto);
  /// Ends interception. Tensors stay over their files.
  ~WeightStreamer();

  const std::vector<StreamUnit>& units() const;
  StreamCounts counts() const;
  /// Throws: DataError if a file was written to.
  void require_unchanged() const;
  /// Ends interception. Page faults read weights that are not in memory from then on.
  void stop();

 private:
  friend class WeightPin;
  class Engine;
  std::shared_ptr<Engine> engine_;
};

}  // namespace hasten::offload
