// Strategy: how a run is laid out over its devices, and how it spends memory and time.
//
// The sizes of the axes are those of layout.h. A strategy also names the form of data parallelism, microbatches,
// recompute and precision.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hasten/plan/layout.h"
#include "hasten/plan/model_shape.h"
#include "hasten/plan/orders.h"

namespace hasten::plan {

enum class DataParallel {
  kDdp,    ///< everything on every rank
  kZero1,  ///< optimizer state is split
  kZero2,  ///< and gradients
  kZero3,  ///< and parameters (FSDP)
};

enum class Recompute {
  kNone,
  kSelective,          ///< attention's scores alone
  kFull,               ///< whole layers
  kEveryOtherProduct,  ///< half of the products, and all that is no product
};

/// How much of tensor parallelism's exchange hides behind products.
enum class TensorOverlap { kNone, kAsync, kMegatron };

struct Strategy {
  LayoutSizes sizes = {};
  int chunks = 1;  ///< stages on each rank of the pipeline
  OrderKind order = OrderKind::kDefault;
  DataParallel data_parallel = DataParallel::kDdp;
  bool sequence_parallel = false;  ///< what tensor parallelism leaves whole is cut along the sequence
  Recompute recompute = Recompute::kNone;
  TensorOverlap overlap_tensor = TensorOverlap::kNone;
  bool overlap_gradients = true;    ///< the exchange of gradients runs beside backward
  double batch = 1;                 ///< sequences of a step, of all ranks
  double micro_batch = 1;           ///< sequences of a forward on one rank
  int element_bytes = 2;            ///< of activations: 2 for bf16 and fp16, 4 for float32
  int weight_bytes = 2;             ///< of a gathered weight
  int gradient_bytes = 4;           ///< of an exchanged gradient
  int optimizer_bytes = 8;          ///< state a parameter: Adam 8, momentum 4, plain SGD 0
  bool pure_low_precision = false;  ///< no float32 weights at all, moments in 16 bits

  /// Returns the ranks with batches of their own.
  int data_ranks() const noexcept { return sizes.dp_replicate * sizes.dp_shard; }
  /// Returns the ranks over which split state lies: dp_shard and cp, or all of data() and cp for stages 1 and 2.
  int shard_ranks() const noexcept { return sizes.dp_shard * sizes.cp; }
  /// Returns microbatches of a rank, at least 1.
  double microbatches() const noexcept;
};

std::string_view data_parallel_name(DataParallel kind);  ///< "ddp", "zero1", "zero2", "zero3"
std::string_view recompute_name(Recompute kind);         ///< "none", "selective", "full", "every_other_product"

/// Reads "ddp", "zero1" to "zero3", 0 to 3, "fsdp", "shard". Throws: UsageError with the nearest name.
DataParallel parse_data_parallel(std::string_view name);
/// Throws: UsageError with the nearest name.
Recompute parse_recompute(std::string_view name);
TensorOverlap parse_tensor_overlap(std::string_view name);

/// Returns "tp 4 pp 4 zero2 16"; "shard 64" is stage 3; "tp 8 shard 8 x 4" repeats a stage's shards on 4 groups.
std::string strategy_text(const Strategy& strategy);

/// Returns the number of axes in use, the measure of how simple a strategy is. Split state counts as one.
int num_axes(const Strategy& strategy);

/// Sets bytes for "no", "fp16" or "bf16". Throws: UsageError for fp8, which is not modelled, and other names.
void set_precision(Strategy& strategy, std::string_view precision);

/// Returns the options of `hasten launch` that start a program in this layout.
std::vector<std::string> launch_flags(const Strategy& strategy);

/// Throws: UsageError for sizes that are no layout of their own product (layout.h); sp above 1, which is not modelled;
/// a tp that does not divide heads and kv heads; more stages than layers; a cp that does not divide the sequence; a
/// batch smaller than the ranks that share it. Legal values are named.
void check_strategy(const ModelShape& model, const Strategy& strategy);

}  // namespace hasten::plan
