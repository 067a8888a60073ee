// Protocol buffers' wire format: a writer and a reader of fields, as far as TensorBoard's messages need them.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace hasten::tracking {

/// Appends fields to one message; messages inside are written to a writer of their own first.
class ProtoWriter {
 public:
  ProtoWriter& varint(int field, uint64_t value) {
    key(field, 0);
    raw_varint(value);
    return *this;
  }
  ProtoWriter& fixed64(int field, double value) {
    key(field, 1);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  ProtoWriter& fixed32(int field, float value) {
    key(field, 5);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  ProtoWriter& bytes(int field, std::string_view value) {
    key(field, 2);
    raw_varint(value.size());
    bytes_.append(value);
    return *this;
  }
  ProtoWriter& packed(int field, const std::vector<double>& values) {
    if (values.empty()) return *this;
    return bytes(field, {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)});
  }
  const std::string& str() const noexcept { return bytes_; }

 private:
  void key(int field, int type) { raw_varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(type)); }
  void raw_varint(uint64_t value) {
    while (value >= 128) {
      bytes_ += static_cast<char>(value | 128);
      value >>= 7;
    }
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

/// Reads the fields of a message that may be damaged or hostile: next() is false at its end and at the first error.
class ProtoReader {
 public:
  explicit ProtoReader(std::string_view message) : rest_(message) {}

  bool next() {
    uint64_t key = 0;
    if (rest_.empty() || !read_varint(key) || key >> 3 == 0 || key >> 3 > 0x1FFFFFFF) return false;
    field_ = static_cast<int>(key >> 3);
    number_ = 0;
    bytes_ = {};
    switch (key & 7) {
      case 0:
        return read_varint(number_);
      case 1:
        return take(8);
      case 5:
        return take(4);
      case 2: {
        uint64_t size = 0;
        return read_varint(size) && take(size);
      }
      default:
        return false;
    }
  }
  int field() const noexcept { return field_; }
  uint64_t varint() const noexcept { return number_; }
  std::string_view bytes() const noexcept { return bytes_; }
  double real() const noexcept {
    if (bytes_.size() == 8) return copied<double>();
    return bytes_.size() == 4 ? static_cast<double>(copied<float>()) : 0.0;
  }

 private:
  template <class T>
  T copied() const noexcept {
    T value;
    std::memcpy(&value, bytes_.data(), sizeof value);
    return value;
  }
  bool take(uint64_t size) {
    if (size > rest_.size()) return false;
    bytes_ = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return true;
  }
  bool read_varint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 127) << shift;
      if (byte < 128) return true;
    }
    return false;
  }

  std::string_view rest_;
  int field_ = 0;
  uint64_t number_ = 0;
  std::string_view bytes_;
};

}  // namespace hasten::tracking
