// CutAxis and GlobalTensor: values that are cut over the ranks of one group, and the parameters that are.
//
// Operators see tensors of global sizes. The handler (handler.h) replaces an operator on them by operators on this
// rank's parts, and by exchanges (exchange.h) where parts do not suffice. A rule an operator tells how (rules.h). Two
// axes may cut one value: the part of the outer one is then a global tensor of the inner one.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/interception/before_scopes.h"
#include "hasten/interception/claim.h"
#include "hasten/interception/interceptor.h"
#include "hasten/parallel/layout/cut.h"
#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/layout/rank_place.h"
#include "hasten/parallel/tensor/parallel_counts.h"

namespace hasten::parallel::tensor {

/// How attention meets a sequence that is cut.
enum class SequenceAttention {
  /// Keys and values of all ranks come to each.
  kGather,
  /// Each rank has all positions of some heads meanwhile (Ulysses).
  kHeads,
};

struct AxisOptions {
  /// "tp", "cp" or "sp", for words.
  std::string name = "tp";
  /// Axes of lower numbers are outside.
  int order = 2;
  /// What leaves a product over a cut dimension is cut on a sequence, and not whole on all ranks.
  bool sequence_parallel = false;
  /// An operator without a rule is refused, and not carried out on whole values.
  bool strict = false;
  SequenceAttention attention = SequenceAttention::kGather;
  /// The ranks have their parts of each second block, counted from 0, in reverse order. Cuts have an even number of
  /// blocks then. So of a sequence of two blocks a rank has a part of its beginning and one of its end.
  bool zigzag = false;
  /// In a recomputed region results of exchanges are dropped, and backward repeats the exchanges.
  bool recompute_exchanges = false;
  /// Words for this rank in errors of exchanges.
  RankPlace place = {};
};

/// An operator's argument, as a rule reads it.
struct Argument {
  at::Tensor tensor;
  /// This rank's part; the tensor itself if it is whole.
  at::Tensor local;
  Cut cut;
  /// Sizes of the whole value.
  std::vector<int64_t> sizes;

  bool is_cut() const noexcept { return cut.is_cut(); }
  int64_t dim() const noexcept { return static_cast<int64_t>(sizes.size()); }
  int64_t size(int64_t dim) const { return sizes[static_cast<size_t>(dim)]; }
  /// The size of the cut dimension.
  int64_t cut_size() const { return size(cut.dim); }
};

class CutAxis : public interception::Interceptor,
                public interception::BeforeScopes,
                public interception::Claim,
                public PlacedParameters,
                public std::enable_shared_from_this<CutAxis> {
 public:
  CutAxis(comm::Group group, AxisOptions options);
  ~CutAxis() override;

  interception::Level level() const override { return interception::Level::kEveryOperator; }
  int order() const noexcept override { return options_.order; }
  std::string words() const override { return "cut over the ranks of " + options_.name; }
  const Placement* placement(const at::Tensor& parameter) const noexcept override;
  const comm::Group& group() const noexcept override { return group_; }

  const AxisOptions& options() const noexcept { return options_; }
  int num_parts() const noexcept { return group_.world_size(); }
  int part() const noexcept { return group_.rank(); }
  /// Returns this rank's interval of a block of `size`.
  CutInterval part_of(int64_t size) const noexcept { return parallel::part_of(size, num_parts(), part()); }

  /// Records a parameter that holds this rank's part.
  void add(const std::string& name, const at::Tensor& parameter, Placement placement);
  /// Returns the name of a cut parameter; "" for another tensor.
  std::string name_of(const at::Tensor& parameter) const;
  /// Notes that an operator takes a cut parameter; those behind it, up to the next, are of its module.
  void note_used(const at::Tensor& parameter) noexcept { last_used_ = parameter.unsafeGetTensorImpl(); }

  /// Returns the number of blocks that views, slices and pieces keep together.
  int64_t blocks_together() const noexcept { return options_.zigzag ? 2 : 1; }
  /// Returns which part of a block a rank has: its own number, or counted from the end (zigzag).
  int part_in_block(int64_t block, int rank) const noexcept {
    return options_.zigzag && block % 2 == 1 ? num_parts() - 1 - rank : rank;
  }
  /// Returns a rank's part of a whole value; the whole value of all ranks' parts, by rank.
  at::Tensor cut_whole(const at::Tensor& whole, const Cut& cut, int part) const;
  at::Tensor join(const std::vector<at::Tensor>& parts, const Cut& cut) const;

  /// Returns the global tensor of a part; the part itself for a cut of nothing. `size`: of the cut dimension.
  at::Tensor wrap(at::Tensor local, const Cut& cut, int64_t size);
  Argument look(const at::Tensor& tensor) const;
  /// Returns look(tensor).is_cut(), at a fraction of the cost.
  bool is_cut(const at::Tensor& tensor) const noexcept;
  /// Returns look(tensor).local, at a fraction of the cost.
  const at::Tensor& local_of(const at::Tensor& tensor) const noexcept;

  /// Notes an operator on cut values, and an exchange, for TensorParallel::counts.
  void count_operator() noexcept { ++num_operators_; }
  void count_exchange(const char* kind, const at::Tensor& value);
  /// Reduces a value over the ranks, without a gradient. Collective: yes. Blocks: yes. Throws: CommError.
  void reduce_(const at::Tensor& value, comm::ReduceOp op);
  /// An operator is carried out on whole values: notes it, says it once a name, or refuses it if strict.
  void note_gathered(const c10::OperatorHandle& op);
  ParallelCounts counts() const;
  /// Its bit among the axes whose rules are running.
  uint64_t bit() const noexcept { return bit_; }
  /// Returns what a pointer to a cut value's elements is refused with.
  const std::string& pointer_words() const noexcept { return pointer_words_; }

  /// While it exists, random operators draw numbers of this rank's own, from a seed that all ranks draw.
  class OwnRandom;

 private:
  comm::Group group_;
  AxisOptions options_;
  uint64_t bit_;
  std::unordered_map<const c10::TensorImpl*, Placement> parameters_;
  std::unordered_map<const c10::TensorImpl*, std::string> names_;
  std::atomic<const c10::TensorImpl*> last_used_ = nullptr;
  /// The words with which data_ptr of a cut value is refused.
  std::string pointer_words_;
  interception::SharedInterceptor list_;
  std::atomic<int64_t> num_operators_ = 0;
  mutable std::mutex mutex_;
  std::map<std::string, ExchangeCount> exchanges_;
  std::map<std::string, int64_t> gathered_;
};

class CutAxis::OwnRandom {
 public:
  OwnRandom(const CutAxis& axis, c10::Device device);
  ~OwnRandom();
  OwnRandom(const OwnRandom&) = delete;
  OwnRandom& operator=(const OwnRandom&) = delete;

 private:
  at::Generator generator_;
  at::Tensor shared_;
};

/// A value of global sizes, of which this rank holds a part. It has no memory and no gradient of its own: gradients
/// flow between the parts. It says that it is contiguous, so that a program's contiguous() before a view costs nothing.
/// The part is made contiguous where that is needed.
class GlobalTensor final : public c10::TensorImpl {
 public:
  GlobalTensor(CutAxis& axis, at::Tensor local, const Cut& cut, at::IntArrayRef sizes);

  const at::Tensor& local() const noexcept { return local_; }
  const Cut& cut() const noexcept { return cut_; }
  CutAxis& axis() const noexcept { return *axis_; }

  /// Returns the implementation of a tensor that is one; else null.
  static const GlobalTensor* of(const at::Tensor& tensor) noexcept;

 private:
  std::shared_ptr<CutAxis> axis_;
  at::Tensor local_;
  Cut cut_;
};

}  // namespace hasten::parallel::tensor
