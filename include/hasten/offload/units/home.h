// Home: the place where a tensor's bytes rest, in memory that others share.
//
// The tensor stays the same object; only its storage's pointer changes. So names, autograd leaves, optimizers' keys,
// views and TorchScript are as before. Operators read the bytes where they are. A write by the program (p.mul_(), init,
// an optimizer that was not prepared) first gives this process a private copy. The copy is its value from then on;
// restore() ends that. The writer of the shared bytes, and the time, is its owner's matter
// (parallel/shard/sharded_model.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

namespace hasten::offload {

class Home {
 public:
  Home();
  /// The storage of `tensor` has its bytes at `place` from now on, which holds its values and as many bytes.
  /// Its memory from before is freed. Throws: UsageError for a tensor without
  /// storage, or one that is not on the CPU.
  Home(const at::Tensor& tensor, at::DataPtr place);
  /// A storage that still exists gets memory of its own.
  ~Home();
  Home(Home&&) noexcept;
  Home& operator=(Home&&) noexcept;

  /// Returns true if the storage was given other memory, by a write or by the program.
  bool is_private() const noexcept;
  /// Returns true if `tensor` lies in this storage.
  bool is_of(const at::Tensor& tensor) const noexcept;
  /// Frees a private copy; the storage has its bytes at the place again. No operator may be reading the copy.
  void restore();
  /// Takes the memory from the storage if it is at home, without a copy: each later access throws with `message`.
  void abandon(const std::string& message);
  /// Lets mutable pointers out without a copy until restore(), for operators that only read through them.
  void set_read_only_access(bool on);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace hasten::offload
