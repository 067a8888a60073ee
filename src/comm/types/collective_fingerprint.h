// Agreement: before data moves, all ranks compare one small fixed-size record of what each is about to do.
//
// Gloo matches operations by order alone. Different sizes end the process in one of its own threads. Equal bytes of
// another dtype give wrong numbers, and no check on one rank can find that. The transport exchanges the records
// (group_impl.h). The pure functions here decide the content of a record and when two of them agree.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "comm/types/call_label.h"
#include "hasten/comm/types/collective.h"

namespace hasten::comm {

/// A rank's next operation. Plain bytes, equal in size on every rank, unused bytes zero.
struct Fingerprint {
  static constexpr int kMaxDims = 8;
  static constexpr int kNone = -1;

  uint64_t sequence = 0;
  OpType kind = OpType::kBarrier;
  int32_t reduce_op = kNone;
  int32_t root = kNone;
  int32_t dtype = kNone;
  /// Number of dimensions; only the first kMaxDims sizes are stored, `trailing` covers all but the first.
  int32_t dims = 0;
  int32_t line = 0;
  std::array<int64_t, kMaxDims> sizes{};
  uint64_t trailing = 0;
  /// The last part of the call's source file name, cut to fit.
  std::array<char, 48> file{};
  /// The call's purpose, if it has one.
  CallLabel label{};

  static Fingerprint of(OpType kind, const std::source_location& site);
  Fingerprint& with_tensor(const at::Tensor& tensor);
  /// A list of numbers all ranks must give alike: a shape, the members of a subgroup.
  Fingerprint& with_sizes(const std::vector<int64_t>& list);
  Fingerprint& with_op(ReduceOp op);
  Fingerprint& with_root(int rank);
};
static_assert(std::is_trivially_copyable_v<Fingerprint>);

/// The rule that ranks with different calls have broken.
inline constexpr const char* kSameCalls =
    "Every rank of a group must make the same calls in the same order: loops of equal length and batch size (or "
    "join_uneven_inputs), and no call of all ranks behind a condition that only some of them meet";

/// "all_reduce(sum) of float32 [4, 3] at train.cpp:42", with a purpose behind it in brackets.
std::string describe(const Fingerprint& record);

/// Returns nothing if all records describe one operation. Otherwise returns a sentence that names the first rank that
/// differs from rank 0 and both sides. First sizes may differ where the operation allows it (all_gather, gather,
/// all_to_all, all_to_all_into).
std::optional<std::string> disagreement(const std::vector<Fingerprint>& by_rank);

}  // namespace hasten::comm
