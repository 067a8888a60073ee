// Reads tensors of Python's files with pread if their bytes lie plainly in a file. It is private to the room.
//
// Pages of a mapping count as this process's memory, those that are read do not: a stream through a file larger than
// memory stays small.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "files/base/named_source.h"
#include "files/base/source_file.h"
#include "hasten/files/python/python_file.h"

namespace hasten::files {

/// Returns where the tensor's values lie, if as they are in memory: in a file, in this byte order, unchanged.
std::optional<TensorLocation> plain_location(const PythonTensor& tensor);

/// Files that are read now and then. Several threads may read.
class TensorFiles {
 public:
  /// Reads a box as read_tensor does.
  void read(const PythonTensor& tensor, const Box& box, void* target) const;

 private:
  std::shared_ptr<const PosixFile> opened(const std::string& path) const;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::shared_ptr<const SourceFile>> files_;
};

}  // namespace hasten::files
