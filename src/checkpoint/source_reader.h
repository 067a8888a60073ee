// SourceReader: reads tensors of any source into tensors. Those that lie plainly in files are read at once, by the ranks
// together where they all want the same; the others one after the other, by each rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/run_reader.h"
#include "hasten/files/manifest.h"
#include "hasten/files/tensor_source.h"

namespace hasten::checkpoint {

class SourceReader {
 public:
  /// The source stays valid as long as this is used. Throws: DataError if a file of the source cannot be opened.
  explicit SourceReader(const files::TensorSource& source);
  SourceReader(const SourceReader&) = delete;
  SourceReader& operator=(const SourceReader&) = delete;

  /// Fills a tensor of any dtype, strides and device in read(); by copy_ where others watch its memory (`through_copy`).
  void into(const at::Tensor& target, const std::string& name, bool through_copy);
  /// A digest of what all ranks want alike; ranks of different digests cannot share.
  std::string shared_digest() const { return in_files_.shared_digest(); }
  /// Reads all. `share` null: by this rank alone. Collective: over the group. Blocks: on the disk. Throws: DataError if a file
  /// cannot be read; CommError.
  void read(const comm::Group* share);
  uint64_t bytes_read() const noexcept { return bytes_read_; }

 private:
  struct Direct {
    at::Tensor target;
    std::string name;
    bool through_copy;
  };

  const files::TensorSource& source_;
  std::set<std::string> outside_files_ = {};
  files::Manifest manifest_;
  RunReader in_files_;
  std::vector<Direct> direct_ = {};
  uint64_t bytes_read_ = 0;
};

}  // namespace hasten::checkpoint
