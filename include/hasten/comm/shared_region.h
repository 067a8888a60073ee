// SharedRegion: memory that all ranks of a group that are on one host read and write in place.
//
// For tensors that outlast a collective: parameters with a single copy a host, gradients that other ranks read in
// place. Each rank maps it twice, read-only and writable. A stray write to a parameter then ends in an error, not in
// another rank's numbers. The memory is an anonymous file. It has no name, is taken from the system page by page at the
// first use, and goes with its last user. The region keeps no order between the ranks: its users agree by collectives
// when others may read.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hasten/comm/group/group.h"

namespace hasten::comm {

struct SharedRegionOptions {
  /// Shows up in /proc/PID/maps.
  std::string label = "hasten-region";
  /// A file on a disk, in whose pages the region rests, for each host; empty: memory. It is made by the first
  /// rank of the host and has no name once all have mapped it, so none is left behind.
  std::string file = {};
};

class SharedRegion {
 public:
  /// An empty region.
  SharedRegion();

  /// Returns a region of `num_bytes` zeros (the same on all ranks) for the ranks of each host of the group.
  /// Collective: yes. Blocks: until all ranks have mapped it. Throws: UsageError on every rank, with the first reason,
  /// where a rank could not map it; CommError.
  static SharedRegion create(const Group& group, int64_t num_bytes, const SharedRegionOptions& options = {});

  int64_t size() const noexcept;
  /// Returns the two mappings; both show the same memory.
  const std::byte* data() const noexcept;
  std::byte* writable() const noexcept;

  /// Returns the ranks of the group on this host, ascending, and this rank's place among them.
  const std::vector<int>& local_ranks() const noexcept;
  int local_index() const noexcept;
  /// Returns the hosts, in the order of their first ranks, each with its ranks.
  const std::vector<std::vector<int>>& hosts() const noexcept;
  int host_index() const noexcept;

  /// Returns a flat tensor over the writable mapping, which it keeps alive.
  /// Throws: InternalError for a range outside the region.
  at::Tensor tensor(int64_t offset_bytes, int64_t numel, c10::ScalarType dtype) const;
  /// Copies `num_bytes` at `from` to the region's place `offset_bytes`. Takes pages from the system without zeroing and
  /// without faults, at half the time of a first memcpy. Throws: InternalError for a range
  /// outside the region, UsageError where the system has no memory (or no space) for it.
  void write(int64_t offset_bytes, const void* from, int64_t num_bytes) const;
  /// Memory for a tensor's storage over the read-only mapping, which it keeps alive.
  /// Throws: as tensor.
  at::DataPtr read_only(int64_t offset_bytes, int64_t num_bytes) const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

/// Returns the hosts in the order of their first ranks, each with its ranks of the group.
/// Collective: yes. Blocks: yes. Throws: CommError.
std::vector<std::vector<int>> ranks_by_host(const Group& group);

/// `output` becomes the reduction of `inputs`, flat tensors of this process of one dtype and size, added up in
/// their order. The same loops as the collectives over shared memory, so the same bits.
/// Throws: UsageError for a dtype that is not reduced (and the mean of integers).
void reduce_local(const at::Tensor& output, const std::vector<at::Tensor>& inputs, ReduceOp op);

}  // namespace hasten::comm
