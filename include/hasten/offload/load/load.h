// Loading weights into a module from any TensorSource: by mapping where they lie, without a copy where that is
// possible.
//
// The source's files are the offload folder: on a CPU, nothing is written or converted. All is examined before any
// tensor changes, so that a load happens whole or not at all. checkpoint::load_weights and the models' from_folder use
// this.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hasten/files/base/tensor_source.h"
#include "hasten/offload/units/mapped_region.h"

namespace hasten::offload {

enum class Io {
  kAuto,  ///< maps, but reads on network file systems
  kMap,
  kRead,  ///< reads into the heap
};

enum class Resident {
  kMapped,  ///< weights stay over the file: the page cache holds them, for all processes of the host
  kLocked,  ///< weights are copied to memory of this process
};

struct LoadOptions {
  /// The dtype that floating-point tensors get; empty: the module's own.
  std::optional<at::ScalarType> dtype = {};
  /// Dotted parts of names ("norm", "layers.0.norm") of tensors that stay float32 whatever `dtype` is.
  std::vector<std::string> keep_in_fp32_modules = {};
  /// Missing and unexpected names are errors.
  bool strict = false;
  /// Regular expressions and what they become, applied in order to the names of the file: {{"^transformer\\.", ""}}. A
  /// name that becomes "" is left out.
  std::vector<std::pair<std::string, std::string>> rename = {};
  /// Gives the file's name of a tensor of the module; goes before `rename`. "": not in the file.
  std::function<std::string(const std::string&)> key_map = {};
  /// Regular expressions of the module's names that the file stores transposed. They are loaded as views, without a
  /// copy.
  std::vector<std::string> transpose = {};
  /// Regular expressions of buffers that no file has, which keep what the constructor gave them, without a word.
  std::vector<std::string> not_saved = {};
  Io io = Io::kAuto;
  Resident resident = Resident::kMapped;
  /// Exchanges the contents of tensors that have memory, too; false: their values are overwritten in place.
  bool replace_storage = false;
  /// The source has only some of the module's tensors on purpose: missing ones are left as they are, without a word.
  bool partial = false;
  /// Mapped weights of another dtype stay as they are in the file and are cast by operators (LoadReport::cast_at_use):
  /// no memory for a copy. For streaming.
  bool cast_at_use = false;
};

/// Where a loaded tensor lies, for streaming it.
struct LoadedPlace {
  std::shared_ptr<MappedRegion> region = {};  ///< null for a tensor in the heap
  uint64_t offset = 0, bytes = 0;
};

struct LoadReport {
  std::vector<std::string> missing = {};           ///< of the module, not in the file; now as constructed
  std::vector<std::string> unexpected = {};        ///< of the file, not in the module
  std::vector<std::string> replayed = {};          ///< missing ones that were empty
  std::map<std::string, LoadedPlace> places = {};  ///< by the module's first name of the tensor
  std::map<std::string, at::ScalarType> cast_at_use = {};
  int64_t mapped_bytes = 0, copied_bytes = 0;
  /// Returns a single message for missing and unexpected names; "" if there are none.
  std::string text() const;
};

/// Loads the tensors of `source` into the module. Empty tensors get their memory here; tied names stay one tensor.
/// A missing parameter that is empty gets its initial value (offload::materialize), with a warning.
/// Blocks: on the files. Throws: DataError, listing all, for other shapes or (strict) other names,
/// before any tensor changes; UsageError for a bad regular expression.
LoadReport load_checkpoint_in_model(torch::nn::Module& module, const files::TensorSource& source,
                                    const LoadOptions& options = {});

/// As above from a weight file, an index, a folder or an offload folder (files::Catalog::open).
LoadReport load_checkpoint_in_model(torch::nn::Module& module, const std::string& checkpoint,
                                    const LoadOptions& options = {});

/// Returns a tensor with the source's values: over the mapped file where possible, else in the heap. `place` gets where
/// it lies. Regions of one load share one cache.
class SourceReader {
 public:
  explicit SourceReader(const files::TensorSource& source, Io io = Io::kAuto, Resident resident = Resident::kMapped);
  ~SourceReader();
  at::Tensor tensor(const std::string& name, LoadedPlace* place = nullptr);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hasten::offload
