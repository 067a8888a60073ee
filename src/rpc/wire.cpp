// See wire.h.
#include "rpc/wire.h"

#include <ATen/EmptyTensor.h>
#include <torch/cuda.h>
#include <torch/types.h>

#include <cstring>
#include <utility>

#include "hasten/core/error.h"
#include "rpc/receive_buffers.h"

namespace hasten::rpc {
namespace {

// Device type 0: CPU.
struct WireTensor {
  uint8_t dtype = 0, flags = 0, dims = 0, device_type = 0;
  uint32_t device_index = 0;
};
constexpr uint8_t kDefined = 1, kRequiresGrad = 2;
constexpr int kMostDims = 64;

[[noreturn]] void refuse_message(const std::string& what) {
  throw DataError(Origin{"rpc"}, "message", what);
}

template <class T>
void append(std::string& bytes, const T* values, size_t count) {
  bytes.append(reinterpret_cast<const char*>(values), count * sizeof(T));
}

// Takes a T from the front.
template <class T>
T take(std::string_view& bytes) {
  if (bytes.size() < sizeof(T)) refuse_message("a message that ends too early");
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

at::Tensor movable(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach().contiguous().resolve_conj().resolve_neg();
  return plain.is_cpu() ? plain : plain.cpu();
}

void set_device(WireTensor& wire, c10::Device device) {
  wire.device_type = static_cast<uint8_t>(device.type());
  wire.device_index = device.has_index() ? static_cast<uint32_t>(device.index()) : 0;
}

bool can_travel(at::ScalarType dtype) {
  return dtype != at::ScalarType::Undefined && dtype < at::ScalarType::NumOptions && !at::isQIntType(dtype);
}

uint32_t version_of(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_inference() ? static_cast<uint32_t>(tensor._version()) : 0;
}

c10::Device device_of(const WireTensor& wire) {
  if (wire.device_type == 0) return c10::Device(c10::kCPU);
  if (static_cast<c10::DeviceType>(wire.device_type) != c10::kCUDA || wire.device_index > 127)
    refuse_message(text("a tensor for device type ", int{wire.device_type}, ", index ", wire.device_index));
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(wire.device_index)};
}

at::Tensor take_tensor(std::string_view& bytes, int64_t& body_left, bool& requires_grad, c10::Device& device) {
  const auto wire = take<WireTensor>(bytes);
  requires_grad = (wire.flags & kRequiresGrad) != 0;
  device = device_of(wire);
  if ((wire.flags & kDefined) == 0) return {};
  const auto dtype = static_cast<at::ScalarType>(wire.dtype);
  if (!can_travel(dtype)) refuse_message(text("a tensor of the unknown dtype ", int{wire.dtype}));
  if (wire.dims > kMostDims) refuse_message(text("a tensor of ", int{wire.dims}, " dimensions; at most ", kMostDims));
  std::vector<int64_t> sizes;
  int64_t num_bytes = static_cast<int64_t>(c10::elementSize(dtype));
  bool is_empty = false;
  for (int i = 0; i < wire.dims; ++i) {
    const auto size = take<int64_t>(bytes);
    if (size < 0) refuse_message(text("a tensor of size ", size));
    sizes.push_back(size);
    if (size == 0) is_empty = true;
    if (size > 0 && __builtin_mul_overflow(num_bytes, size, &num_bytes))
      refuse_message("a tensor larger than any memory");
  }
  if (is_empty) num_bytes = 0;
  if (num_bytes > body_left)
    refuse_message(text("a tensor of ", num_bytes, " bytes where ", body_left, " are to come"));
  body_left -= num_bytes;
  // Pinned memory is copied to a GPU at twice the speed.
  if (device.is_cuda() && torch::cuda::is_available())
    return torch::empty(sizes, at::TensorOptions(dtype).pinned_memory(true));
  return at::detail::empty_generic(sizes, &ReceiveBuffers::get(), c10::DispatchKeySet(c10::DispatchKey::CPU), dtype,
                                   std::nullopt);
}

}  // namespace

comm::OutgoingMessage encode(Head head, detail::Packed packed, const std::vector<WireReference>& references,
                             const DevicePlacement& placement, std::function<void(size_t)> changed) {
  head.num_tensors = static_cast<uint32_t>(packed.tensors.size());
  head.num_references = static_cast<uint32_t>(references.size());
  head.num_value_bytes = packed.bytes.size() - detail::Packed::kReservedBytes;
  std::vector<at::Tensor> kept;
  comm::OutgoingMessage message{std::move(packed.bytes)};
  for (size_t i = 0; i < packed.tensors.size(); ++i) {
    const at::Tensor& tensor = packed.tensors[i];
    WireTensor wire;
    if (!tensor.defined()) {
      append(message.head, &wire, 1);
      continue;
    }
    if (!can_travel(tensor.scalar_type())) {
      throw UsageError({"rpc"}, "a tensor of dtype ", c10::toString(tensor.scalar_type()),
                       " cannot travel. Dequantize it first.");
    }
    if (!tensor.is_cpu()) set_device(wire, placement(i, tensor.device()));
    const at::Tensor plain = movable(tensor);
    wire.dtype = static_cast<uint8_t>(plain.scalar_type());
    wire.flags = static_cast<uint8_t>(kDefined | (tensor.requires_grad() ? kRequiresGrad : 0));
    wire.dims = static_cast<uint8_t>(plain.dim());
    append(message.head, &wire, 1);
    append(message.head, plain.sizes().data(), plain.sizes().size());
    if (plain.numel() > 0)
      message.body.push_back({static_cast<const std::byte*>(plain.const_data_ptr()), plain.nbytes()});
    kept.push_back(plain);
  }
  append(message.head, references.data(), references.size());
  std::memcpy(message.head.data() + comm::OutgoingMessage::kPrefixBytes, &head, sizeof head);
  if (kept.empty()) return message;
  if (!changed) {
    message.sent = [kept = std::move(kept)] {};
    return message;
  }
  std::vector<uint32_t> versions;
  for (const at::Tensor& tensor : packed.tensors) versions.push_back(version_of(tensor));
  message.sent = [kept = std::move(kept), given = std::move(packed.tensors), versions, changed = std::move(changed)] {
    for (size_t i = 0; i < given.size(); ++i) {
      if (version_of(given[i]) != versions[i]) changed(i);
    }
  };
  return message;
}

Decoded decode(std::string_view bytes, int64_t body_bytes) {
  Decoded decoded;
  decoded.head = take<Head>(bytes);
  const Head& head = decoded.head;
  if (head.kind == 0 || head.kind > kLastKind) refuse_message(text("a message of the unknown kind ", head.kind));
  if (head.num_value_bytes > bytes.size()) refuse_message("a message with more values than bytes");
  decoded.packed.bytes.assign(bytes.substr(0, head.num_value_bytes));
  decoded.packed.begin = 0;
  bytes.remove_prefix(head.num_value_bytes);
  if (head.num_tensors > bytes.size() / sizeof(WireTensor)) refuse_message("a message with more tensors than bytes");
  int64_t left = body_bytes;
  for (uint32_t i = 0; i < head.num_tensors; ++i) {
    bool requires_grad = false;
    c10::Device device(c10::kCPU);
    const at::Tensor tensor = take_tensor(bytes, left, requires_grad, device);
    if (!device.is_cpu()) {
      decoded.devices.resize(i + size_t{1}, c10::Device(c10::kCPU));
      decoded.devices[i] = device;
    }
    if (tensor.defined() && tensor.nbytes() > 0)
      decoded.body.push_back({static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()});
    decoded.packed.tensors.push_back(tensor);
    decoded.requires_grad.push_back(requires_grad);
  }
  if (left != 0) refuse_message(text("a body with ", left, " bytes that belong to no tensor"));
  if (bytes.size() != size_t{head.num_references} * sizeof(WireReference))
    refuse_message(text("a message with ", bytes.size(), " bytes for ", head.num_references, " references"));
  for (uint32_t i = 0; i < head.num_references; ++i) decoded.references.push_back(take<WireReference>(bytes));
  return decoded;
}

void move_to_devices(Decoded& message) {
  for (size_t i = 0; i < message.devices.size(); ++i) {
    const c10::Device device = message.devices[i];
    if (device.is_cpu() || !message.packed.tensors[i].defined()) continue;
    if (static_cast<int64_t>(device.index()) >= static_cast<int64_t>(torch::cuda::device_count()))
      refuse_message(
          text("a tensor for ", device.str(), ", where ", torch::cuda::device_count(), " CUDA devices exist"));
    message.packed.tensors[i] = message.packed.tensors[i].to(device);
  }
}

}  // namespace hasten::rpc
