// Files that Python writes with torch.save or pickle: opened as inert values, and written so that torch.load reads
// them.
//
// Reads torch's zip form, the form before torch 1.6, and bare pickles, protocols 0 to 5. Tensors stay in the mapped
// file until they are read. Writes the zip form of pickle protocol 2, which torch.load(weights_only=True) and mmap=True
// take.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "hasten/files/base/tensor_source.h"
#include "hasten/files/disk/disk.h"
#include "hasten/files/python/python_value.h"

namespace hasten::files {

class PythonFile {
 public:
  enum class Form { kZip, kLegacy, kPickle };

  /// Blocks: on the file. Throws: DataError if it is no such file or is damaged, with the byte position.
  static PythonFile open(const std::string& path);
  /// Reads from memory that `owner` keeps. `offset` is its place in the file `path`, for messages and for mapping.
  static PythonFile parse(std::string_view bytes, std::shared_ptr<const void> owner, const std::string& path,
                          uint64_t offset = 0);
  /// Returns true if the first bytes are those of a zip file or a pickle.
  static bool is_python_file(const std::string& path);

  const PythonValue& value() const noexcept { return value_; }
  const PythonValue& operator[](std::string_view key) const { return value_.at(key); }
  Form form() const noexcept { return form_; }
  const std::string& path() const noexcept { return path_; }
  /// Returns classes and functions that Python would have called to make the value, and that are unknown to hasten.
  const std::set<std::string>& unknown_names() const noexcept { return unknown_names_; }

 private:
  PythonValue value_;
  Form form_ = Form::kPickle;
  std::string path_;
  std::set<std::string> unknown_names_;
};

/// Copies the elements of `box` to `target`: contiguous, native byte order, conj and neg resolved.
/// Throws: DataError for a tensor without values (meta) or of a layout that is not strided.
void read_tensor(const PythonTensor& tensor, const Box& box, void* target);

/// Returns the state_dict of a whole pickled module: parameters, buffers and children in Python's order, without
/// buffers that are not persistent. Wrappers (DistributedDataParallel, DataParallel, torch.compile) are unwrapped.
/// Throws: DataError if `module` is no object with _parameters and _modules.
PythonValue state_dict_of_module(const PythonValue& module);
/// Returns true for an object with _parameters, _buffers and _modules.
bool is_module(const PythonValue& value) noexcept;

struct PythonSourceOptions {
  /// Takes "module." and "_orig_mod." off if all names have them; a remark reports it.
  bool strip_prefix = true;
  /// The key whose value holds the tensors ("model"). "" accepts a state_dict, a module, or a single value with tensors
  /// under "model", "state_dict", "module" or "model_state_dict". Otherwise it takes all tensors, with keys joined by
  /// dots.
  std::string key = {};
};

/// Returns the tensors of a value or file under their names.
TensorSourcePtr python_source(const PythonValue& value, const std::string& path,
                              const PythonSourceOptions& options = {});
TensorSourcePtr open_python_source(const std::string& path, const PythonSourceOptions& options = {});

struct PythonWriteOptions {
  /// Name of the archive's root folder; "": the file's name without suffix.
  std::string root = {};
};

/// Writes `value` as torch.save would. Tensors of one storage share it in the file. Storages' bytes come from their
/// `data` or `read`. The file is synced and closed, not renamed. Blocks: on the disk. Throws: UsageError for a value
/// that needs code to load (an object), a cycle, or more than 500 levels; DiskError.
void write_python_file(Disk& disk, const std::string& path, const PythonValue& value,
                       const PythonWriteOptions& options = {});

/// Writes to a temporary name beside `path`, then renames, so that no half file is ever visible.
void save_python_file(Disk& disk, const std::string& path, const PythonValue& value,
                      const PythonWriteOptions& options = {});

/// Returns a contiguous tensor value whose storage is `bytes` at `data`, kept alive by `owner`.
PythonValue tensor_value(Dtype dtype, std::vector<int64_t> shape, const void* data, std::shared_ptr<const void> owner);

}  // namespace hasten::files
