// SourceReader: reads tensors of any source into tensors. Tensors that lie plainly in files are read at once. If all
// ranks need the same, they read them together. Each rank reads the other tensors one after the other.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/run_reader.h"
#include "hasten/files/base/tensor_source.h"
#include "hasten/files/folders/manifest.h"

namespace hasten::checkpoint {

class SourceReader {
 public:
  /// The source stays valid as long as this is used. Throws: DataError if a file of the source cannot be opened.
  explicit SourceReader(const files::TensorSource& source);
  SourceReader(const SourceReader&) = delete;
  SourceReader& operator=(const SourceReader&) = delete;

  /// Fills a tensor of any dtype, strides and device in read(). If others watch its memory (`through_copy`), it uses
  /// copy_.
  void into(const at::Tensor& target, const std::string& name, bool through_copy);
  /// Gives what was read to `put` in read(), in the dtype of the file.
  void into(const std::function<void(const at::Tensor&)>& put, const std::string& name);
  /// A digest of what all ranks want alike; ranks of different digests cannot share.
  std::string shared_digest() const { return in_files_.shared_digest(); }
  /// Reads all. `share` null: by this rank alone. Collective: over the group. Blocks: on the disk. Throws: DataError if
  /// a file cannot be read; CommError.
  void read(const comm::Group* share);
  uint64_t bytes_read() const noexcept { return bytes_read_; }

 private:
  struct Direct {
    std::string name;
    std::function<void()> read;
  };

  const files::TensorSource& source_;
  std::set<std::string> outside_files_ = {};
  files::Manifest manifest_;
  RunReader in_files_;
  std::vector<Direct> direct_ = {};
  uint64_t bytes_read_ = 0;
};

}  // namespace hasten::checkpoint
