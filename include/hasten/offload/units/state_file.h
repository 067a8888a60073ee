// StateFile: tensors whose bytes rest in files and are in memory only while they are in use.
//
// Each tensor lies in a mapping of a file: the kernel's page cache is the buffer, the program reads and writes
// the tensor as any other, and release() lets its pages go. The files have no name after they are made, so
// nothing is left behind however the process ends. Used for optimizer state between steps (ZeRO-Infinity's
// optimizer offload).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

namespace hasten::offload {

class StateFile {
 public:
  /// Files in `folder`, which is made if it is missing.
  /// Collective: no. Blocks: no. Throws: DataError naming the folder if no file can be made there.
  explicit StateFile(const std::string& folder);
  ~StateFile();
  StateFile(StateFile&&) noexcept;
  StateFile& operator=(StateFile&&) noexcept;

  /// A tensor of the values, sizes and dtype of `tensor` (contiguous, on the CPU) in a file. It may outlive this
  /// object. Collective: no. Blocks: for the write. Throws: DataError where the disk has no space.
  at::Tensor store(const at::Tensor& tensor);
  /// Whether the tensor's memory is one of these files.
  bool holds(const at::Tensor& tensor) const;

  /// Starts to read what release() has let go.
  /// Collective: no. Blocks: no. Throws: nothing.
  void fetch(const at::Tensor& tensor) const noexcept;
  /// Lets the tensor's pages go to the file. Its values stay, and come back with the next use.
  /// Collective: no. Blocks: for the write. Throws: nothing.
  void release(const at::Tensor& tensor) const noexcept;

  /// Bytes of all tensors.
  int64_t num_bytes() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hasten::offload
