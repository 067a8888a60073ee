// How calls lie in messages: the head of fixed size, descriptions of tensors, references. docs/formats/rpc.md.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hasten/comm/messages/messages.h"
#include "hasten/rpc/detail/core.h"
#include "rpc/reference_holders.h"

namespace hasten::rpc {

enum class Kind : uint16_t {
  kCall = 1,
  kReply,
  kError,
  kCreate,
  kGrant,
  kConfirm,
  kDrop,
  kEngine,
  kEngineReply,
  kSettle,
  kSettled,
  kStatus,
  kStatusReply,
  kCancel,
  kEnding,
  kLost,
};
constexpr uint16_t kLastKind = static_cast<uint16_t>(Kind::kLost);

/// The first bytes of every message, little endian.
struct Head {
  uint16_t kind = 0, flags = 0;
  uint32_t function = 0;  // index in the callee's list; of an engine message, libtorch's type
  uint64_t call = 0;      // the caller's number
  uint32_t signature = 0;
  uint32_t num_tensors = 0;
  uint32_t num_references = 0;
  uint32_t pass = 0;  // backward pass of the context
  uint64_t num_value_bytes = 0;
  int64_t left_us = 0;   // until the caller gives up; 0: never
  int64_t context = -1;  // autograd context and ids of the two autograd messages; -1: none
  int64_t message = -1, reply_message = -1;
  uint32_t object_creator = 0, unused = 0;
  uint64_t object_number = 0;
  uint64_t created = 0;  // number of the value that a creation makes; its creator is the sender
};
static_assert(sizeof(Head) == 96 && detail::Packed::kReservedBytes == 16 + sizeof(Head));
constexpr uint16_t kRetainGraph = 1;
constexpr uint16_t kWaitedFor = 2;  // the caller waits at once: rpc_sync in a profile
constexpr uint16_t kByLoss = 4;     // the release of a context by a worker that has lost its maker

/// A reference as it travels. The receiver holds `grant`, unless it is the owner.
struct WireReference {
  uint32_t creator = 0, owner = 0;
  uint64_t number = 0;
  Grant grant = {};
};
static_assert(sizeof(WireReference) == 32);

/// The device at the receiver for tensor `i` of a message, which lies on `device`. Throws: UsageError if there is none.
using DevicePlacement = std::function<c10::Device(size_t i, c10::Device device)>;

/// Returns a message for Messages::send. Tensors are made contiguous CPU tensors and held until they are sent.
/// `changed` is called with the index of a tensor that was changed in place before.
comm::OutgoingMessage encode(Head head, detail::Packed packed, const std::vector<WireReference>& references,
                             const DevicePlacement& placement, std::function<void(size_t)> changed = nullptr);

/// A message taken apart: the tensors have memory for the body.
struct Decoded {
  Head head;
  detail::Packed packed;
  std::vector<WireReference> references;
  std::vector<bool> requires_grad;
  std::vector<std::span<std::byte>> body;
  /// Where a tensor goes once its elements have come; CPU: it stays. Shorter than `tensors` if all stay.
  std::vector<c10::Device> devices = {};
};
/// Moves tensors to their devices. Throws: DataError for a device that does not exist.
void move_to_devices(Decoded& message);
/// Throws: DataError for anything that does not fit together.
Decoded decode(std::string_view bytes, int64_t body_bytes);

}  // namespace hasten::rpc
