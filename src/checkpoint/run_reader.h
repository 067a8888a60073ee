// RunReader: collects the boxes that a load needs of a saved state, reads them at once, and returns them.
//
// Boxes that all ranks need alike are read once for each host (files/folders/bulk_read.h) and exchanged by all-gathers.
// Boxes that only this rank needs (slices of sharded state) are read by it alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hasten/checkpoint/options.h"
#include "hasten/files/folders/bulk_read.h"
#include "hasten/offload/units/device_writes.h"

namespace hasten::comm {
class Group;
}

namespace hasten::checkpoint {

class RunReader {
 public:
  /// `manifest` stays valid as long as this is used.
  RunReader(const files::Manifest& manifest, std::string folder, bool verify)
      : manifest_(manifest), folder_(std::move(folder)), verify_(verify) {}

  /// Fills a tensor of any dtype, strides and device, a cut parameter with this rank's part. If others watch its memory
  /// (`through_copy`), it uses copy_.
  void into(const at::Tensor& target, const std::string& name, bool through_copy);
  /// Calls `put` with the whole tensor, on the CPU.
  void into(const std::function<void(const at::Tensor&)>& put, const std::string& name);
  /// Makes a new CPU tensor, for take(). `is_own`: other ranks do not need it.
  void whole(const std::string& name, bool is_own = false);
  /// Makes a new CPU tensor of this rank's part of a tensor that is cut as a parameter is, for take().
  void part(const std::string& name, const at::Tensor& parameter);
  /// Makes a new flat CPU tensor of the elements [begin, end) of a tensor in the memory order of `like`, for take().
  /// If `like` is a cut parameter, the elements are those of its part. Read by this rank alone.
  void slice(const std::string& name, const at::Tensor& like, int64_t begin, int64_t end);

  /// Fills a contiguous CPU tensor of the tensor's dtype with a box of it. Read by this rank alone.
  void box(const std::string& name, const files::Box& place, const at::Tensor& target);

  /// Returns a digest of the boxes that all ranks need alike; ranks of different digests cannot share.
  std::string shared_digest() const;
  /// Reads all. `share` null: by this rank alone. Collective: over the group. Blocks: on the disk. Throws: DataError if
  /// a file cannot be read or a piece is damaged; CommError.
  void read(const comm::Group* share);
  /// Returns the tensor of whole() or slice(), which is then the caller's. Throws: InternalError if it was not
  /// requested.
  at::Tensor take(const std::string& name);
  bool has(const std::string& name) const { return made_.count(name) > 0; }
  uint64_t bytes_read() const noexcept { return bytes_read_; }

 private:
  const files::TensorInfo& info(const std::string& name) const;
  // Reads the box of a tensor, or of this rank's part of it, into `part`.
  void box(const std::string& name, const at::Tensor& like, const files::Box& place, const at::Tensor& part);
  void run(const std::vector<files::BulkTarget>& targets, const comm::Group* share, std::vector<std::string>& damaged);

  const files::Manifest& manifest_;
  std::string folder_;
  bool verify_;
  std::vector<files::BulkTarget> shared_ = {}, own_ = {};
  std::map<std::string, at::Tensor> made_ = {};
  std::shared_ptr<offload::DeviceWrites> writes_ = std::make_shared<offload::DeviceWrites>();
  mutable std::map<std::string, const files::TensorInfo*, std::less<>> infos_ = {};
  uint64_t bytes_read_ = 0;
};

}  // namespace hasten::checkpoint
