// TensorSource: named tensors in files, read box by box. All that loads weights takes one.
//
// Implementations read safetensors files, Hugging Face's indexes, Python's torch.save files, DCP, FSDP and DeepSpeed
// folders and hasten's own checkpoints. open_source (open_source.h) chooses the one for a path.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hasten/files/base/box.h"
#include "hasten/files/base/dtype.h"

namespace hasten::files {

struct TensorInfo {
  std::string name = {};
  Dtype dtype = Dtype::kFloat32;
  std::vector<int64_t> shape = {};
};

/// Returns the bytes of all elements. Throws: UsageError if they do not fit 63 bits.
int64_t bytes_of(const TensorInfo& info);

/// Where a tensor lies in a file, for mapping it: element (0, …) begins `offset` bytes into the file.
struct TensorLocation {
  std::string path = {};
  uint64_t offset = 0;
  std::vector<int64_t> strides = {};  ///< in elements
};

class TensorSource {
 public:
  virtual ~TensorSource() = default;

  /// Returns the names of all tensors, in the order of the file (a state_dict's order where the form keeps it).
  virtual const std::vector<std::string>& names() const = 0;

  /// Returns true if there is a tensor of this name.
  virtual bool contains(std::string_view name) const = 0;

  /// Throws: UsageError, with the nearest name, if there is no such tensor.
  virtual const TensorInfo& info(std::string_view name) const = 0;

  /// Reads the elements of `box` to `target`, contiguous and in this machine's byte order. Several threads may read.
  /// Blocks: on the file. Throws: UsageError for an unknown name or a box outside the tensor; DataError
  /// if the file cannot be read.
  virtual void read(std::string_view name, const Box& box, void* target) const = 0;

  /// Returns the place of the whole tensor, unswapped and uncompressed in one file; nothing if there is no such place.
  virtual std::optional<TensorLocation> location(std::string_view name) const = 0;

  /// Returns the path the source was opened with, for messages.
  virtual const std::string& path() const = 0;

  /// Returns the form's name: "safetensors", "torch.save", "dcp", "deepspeed", "hasten".
  virtual std::string_view form() const = 0;

  /// Returns remarks for the user, each once: a prefix taken off, a form preferred over another.
  virtual std::vector<std::string> remarks() const { return {}; }

  /// Reads the whole tensor.
  void read_all(std::string_view name, void* target) const { read(name, whole_box(info(name).shape), target); }
};

using TensorSourcePtr = std::shared_ptr<const TensorSource>;

}  // namespace hasten::files
