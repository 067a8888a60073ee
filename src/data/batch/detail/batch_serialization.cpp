// Bytes and tensors; see batch_serialization.h.
#include "hasten/data/batch/detail/batch_serialization.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "hasten/core/error.h"

namespace hasten::data::detail {

namespace {

constexpr size_t kAlignment = 64;

constexpr size_t aligned(size_t at) noexcept {
  return (at + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

void ParcelWriter::bytes(const void* data, size_t size) {
  const auto* from = static_cast<const uint8_t*>(data);
  buffer_.insert(buffer_.end(), from, from + size);
}

void ParcelWriter::string(const std::string& value) {
  number<uint64_t>(value.size());
  bytes(value.data(), value.size());
}

void ParcelWriter::tensor(const at::Tensor& tensor) {
  number(tensor.defined());
  if (!tensor.defined()) return;
  if (tensor.layout() != at::kStrided) {
    throw UsageError(Origin{"data"}, "a batch that is dispatched holds a tensor of layout ", tensor.layout(),
                     ", expected a dense one. Call to_dense() in the dataset, or use dispatch_batches = false.");
  }
  const at::Tensor plain = tensor.detach().cpu().contiguous();
  number(static_cast<int8_t>(plain.scalar_type()));
  number<uint64_t>(static_cast<uint64_t>(plain.dim()));
  for (const int64_t size : plain.sizes()) number(size);
  buffer_.resize(aligned(buffer_.size()));
  bytes(plain.const_data_ptr(), plain.nbytes());
}

at::Tensor ParcelWriter::finish() const {
  const at::Tensor result = at::empty({static_cast<int64_t>(buffer_.size())}, at::kByte);
  std::memcpy(result.mutable_data_ptr(), buffer_.data(), buffer_.size());
  return result;
}

ParcelReader::ParcelReader(at::Tensor buffer) : buffer_(std::move(buffer)) {}

const uint8_t* ParcelReader::take(size_t size) {
  const size_t all = buffer_.nbytes();
  if (at_ > all || size > all - at_) {
    throw InternalError(Origin{"data"}, "a dispatched batch of ", all, " bytes ends at byte ", at_, ".");
  }
  const auto* found = buffer_.const_data_ptr<uint8_t>() + at_;
  at_ += size;
  return found;
}

void ParcelReader::bytes(void* data, size_t size) {
  std::memcpy(data, take(size), size);
}

std::string ParcelReader::string() {
  const auto size = number<uint64_t>();
  const auto* from = take(size);
  return {from, from + size};
}

at::Tensor ParcelReader::tensor() {
  if (!number<bool>()) return {};
  const auto dtype = static_cast<at::ScalarType>(number<int8_t>());
  std::vector<int64_t> sizes(number<uint64_t>());
  size_t count = 1;
  for (int64_t& size : sizes) count *= static_cast<size_t>(size = number<int64_t>());
  at_ = aligned(at_);
  auto* data = const_cast<uint8_t*>(take(count * c10::elementSize(dtype)));
  return at::from_blob(
      data, sizes, [buffer = buffer_](void*) {}, at::TensorOptions(dtype));
}

}  // namespace hasten::data::detail
