// The compared fields, and the text of a difference; see collective_fingerprint.h.
#include "comm/types/collective_fingerprint.h"

#include <algorithm>
#include <string_view>

#include "comm/types/call_advice.h"
#include "hasten/comm/types/purpose.h"
#include "hasten/core/text.h"

namespace hasten::comm {
namespace {

bool first_sizes_may_differ(OpType kind) {
  return describe_collective(kind).sizes == SizeRule::kFirstMayDiffer;
}

// FNV-1a over the sizes after the first.
uint64_t hash_trailing(at::IntArrayRef sizes) {
  uint64_t hash = 14695981039346656037ULL;
  for (size_t i = 1; i < sizes.size(); ++i) hash = (hash ^ static_cast<uint64_t>(sizes[i])) * 1099511628211ULL;
  return hash;
}

bool agree(const Fingerprint& a, const Fingerprint& b) {
  const bool same_call = a.sequence == b.sequence && a.kind == b.kind && a.reduce_op == b.reduce_op &&
                         a.root == b.root && a.dtype == b.dtype && a.dims == b.dims && a.trailing == b.trailing;
  return same_call && (first_sizes_may_differ(a.kind) || a.sizes[0] == b.sizes[0]);
}

}  // namespace

Fingerprint Fingerprint::of(OpType kind, const std::source_location& site) {
  Fingerprint record;
  record.kind = kind;
  record.line = static_cast<int32_t>(site.line());
  std::string_view file(site.file_name());
  if (const size_t slash = file.rfind('/'); slash != std::string_view::npos) file.remove_prefix(slash + 1);
  std::copy_n(file.begin(), std::min(file.size(), record.file.size() - 1), record.file.begin());
  if (Purpose::current().text != nullptr) record.label = CallLabel::of(site);
  return record;
}

Fingerprint& Fingerprint::with_tensor(const at::Tensor& tensor) {
  dtype = static_cast<int32_t>(tensor.scalar_type());
  return with_sizes(tensor.sizes().vec());
}

Fingerprint& Fingerprint::with_sizes(const std::vector<int64_t>& list) {
  dims = static_cast<int32_t>(list.size());
  std::copy_n(list.begin(), std::min<int64_t>(dims, kMaxDims), sizes.begin());
  trailing = hash_trailing(list);
  return *this;
}

Fingerprint& Fingerprint::with_op(ReduceOp op) {
  reduce_op = static_cast<int32_t>(op);
  return *this;
}

Fingerprint& Fingerprint::with_root(int rank) {
  root = rank;
  return *this;
}

std::string describe(const Fingerprint& record) {
  std::string out = name_of(record.kind);
  if (record.reduce_op != Fingerprint::kNone) out += text('(', name_of(static_cast<ReduceOp>(record.reduce_op)), ')');
  if (record.root != Fingerprint::kNone) out += text(" with root ", record.root);
  const int shown = std::min<int>(record.dims, Fingerprint::kMaxDims);
  const std::string list = text('[', join(std::vector<int64_t>(record.sizes.begin(), record.sizes.begin() + shown)),
                                record.dims > shown ? ", …]" : "]");
  if (record.dtype != Fingerprint::kNone) out += text(" of ", static_cast<at::ScalarType>(record.dtype), ' ', list);
  if (record.kind == OpType::kSubgroup) out += " of ranks " + list;
  return text(out, " at ", record.file.data(), ':', record.line, record.label.in_brackets());
}

std::optional<std::string> disagreement(const std::vector<Fingerprint>& by_rank) {
  for (size_t rank = 1; rank < by_rank.size(); ++rank) {
    if (agree(by_rank[0], by_rank[rank])) continue;
    std::string what = text("rank 0 calls ", describe(by_rank[0]), ", rank ", rank, " calls ", describe(by_rank[rank]));
    if (by_rank[0].sequence != by_rank[rank].sequence) {
      what += text(" (operations number ", by_rank[0].sequence, " and ", by_rank[rank].sequence, " of the group)");
    }
    const std::string advice = advice_on("0", by_rank[0].label, text(rank), by_rank[rank].label);
    return text(what, ". ", advice, kSameCalls, '.');
  }
  return std::nullopt;
}

}  // namespace hasten::comm
