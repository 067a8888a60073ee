// Writer and Reader: the two ends of a message's values. Tensors and references travel beside the bytes.
//
// values.h lists the types that can be written. A type of a program's own may use these two in a Codec of its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace hasten::rpc {

namespace detail {
class Core;
class Reference;

/// A message's values on their way.
struct Packed {
  /// Before values of an outgoing message lie this many reserved bytes: the frame's prefix and the call's head.
  static constexpr size_t kReservedBytes = 16 + 96;
  std::string bytes = std::string(kReservedBytes, '\0');
  size_t begin = kReservedBytes;
  std::vector<at::Tensor> tensors = {};
  std::vector<std::shared_ptr<Reference>> references = {};
};

}  // namespace detail

class Writer {
 public:
  explicit Writer(detail::Packed& packed) : packed_(packed) {}
  void bytes(const void* data, size_t size) { packed_.bytes.append(static_cast<const char*>(data), size); }
  template <class T>
    requires std::is_trivially_copyable_v<T>
  void number(T value) {
    bytes(&value, sizeof value);
  }
  void size(size_t count) { number(static_cast<uint64_t>(count)); }
  void string(std::string_view value) {
    size(value.size());
    bytes(value.data(), value.size());
  }
  /// Strided, sparse COO or undefined. Throws: UsageError for another layout.
  void tensor(const at::Tensor& value);
  void reference(std::shared_ptr<detail::Reference> value) { packed_.references.push_back(std::move(value)); }

 private:
  detail::Packed& packed_;
};

/// Reads what a Writer wrote. Every count is checked against the bytes that are there. Throws (all): DataError.
class Reader {
 public:
  Reader(detail::Packed& packed, std::shared_ptr<detail::Core> core);
  void bytes(void* data, size_t size) {
    if (size > left()) fail("ends too early");
    std::memcpy(data, next_, size);
    next_ += size;
  }
  template <class T>
    requires std::is_trivially_copyable_v<T>
  T number() {
    T value;
    bytes(&value, sizeof value);
    return value;
  }
  /// Returns a count of elements of which each takes at least `least_bytes` bytes.
  size_t size(size_t least_bytes = 1) {
    const auto count = number<uint64_t>();
    if (count > left() / (least_bytes == 0 ? 1 : least_bytes)) fail("counts more elements than it has bytes for");
    return static_cast<size_t>(count);
  }
  std::string string() {
    std::string value(size(), '\0');
    bytes(value.data(), value.size());
    return value;
  }
  at::Tensor tensor();
  std::shared_ptr<detail::Reference> reference();
  size_t left() const { return static_cast<size_t>(end_ - next_); }
  const std::shared_ptr<detail::Core>& core() const { return core_; }
  /// Types nest at most 64 deep.
  class Level {
   public:
    explicit Level(Reader& reader) : reader_(reader) {
      if (++reader_.depth_ > 64) reader_.fail("nests deeper than 64");
    }
    ~Level() { --reader_.depth_; }

   private:
    Reader& reader_;
  };
  [[noreturn]] void fail(std::string_view what) const;

 private:
  at::Tensor next_tensor();
  detail::Packed& packed_;
  std::shared_ptr<detail::Core> core_;
  const char* next_;
  const char* end_;
  size_t tensor_ = 0, reference_ = 0;
  int depth_ = 0;
};

}  // namespace hasten::rpc
