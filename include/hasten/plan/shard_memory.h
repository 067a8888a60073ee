// Memory of a training whose state is split over the ranks: bytes per host, for every strategy.
//
// Pure formulas (docs/sharding.md, Memory). P parameters, L ranks a host, H hosts, U elements of the largest unit, b
// bytes of the compute dtype. Float32 masters take 4 more if b < 4, a gradient takes 4, optimizer state takes a. Ranks
// with a device each share no memory: there W = L H ranks split what a host's ranks hold once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hasten::plan {

struct ShardMemoryInput {
  int64_t parameters = 0;
  /// Elements of the largest unit, at least those of the largest parameter.
  int64_t largest_unit = int64_t{1} << 20;
  int ranks_per_host = 1;
  int hosts = 1;
  /// 4 for float32, 2 for bf16 and fp16.
  int compute_bytes = 4;
  /// State per parameter: 8 for Adam, 4 for momentum, 0 for plain SGD.
  int optimizer_bytes = 8;
};

struct ShardMemoryRow {
  std::string strategy;
  int64_t parameters = 0, gradients = 0, optimizer = 0;  ///< bytes on one host
  int64_t on_disk = 0;                                   ///< bytes of files on one host
  /// Bytes on each device, if every rank has one: parameters, gradients, optimizer state and units under way.
  int64_t on_device = 0;
  int64_t total() const noexcept { return parameters + gradients + optimizer; }
};

/// Units that are whole for a while on a device in a step, beside what its rank owns.
struct UnitsUnderWay {
  /// 1 to 3 (docs/sharding.md).
  int stage = 3;
  /// Elements of the largest unit.
  double unit = 0;
  double ranks = 1;
  int compute_bytes = 4, gradient_bytes = 4;
};

/// Returns the bytes. Stage 1: the gradients that autograd makes of a unit. Stages 2 and 3: those, the buffer that they
/// are copied to, the unit before, and the sum of the rank's part. Stage 3: two units of parameters as well.
double bytes_under_way(const UnitsUnderWay& units);

/// Rows for Ddp, stages 1 to 3, and stage 3 with optimizer state, then with parameters as well, in files.
/// Throws: UsageError for numbers below 1, or bytes that are none of a dtype's.
std::vector<ShardMemoryRow> shard_memory(const ShardMemoryInput& input);

/// Returns the first row that fits into `bytes` of one host; null if none does.
const ShardMemoryRow* cheapest_that_fits(const std::vector<ShardMemoryRow>& rows, int64_t bytes);

/// Returns the table as text, with a line on what fits if `limit` is given. Sizes are in units of 1024.
std::string describe(const ShardMemoryInput& input, const std::vector<ShardMemoryRow>& rows,
                     std::optional<int64_t> limit = {});

/// Reads "124M", "1.3B", "7e9", "350k" as a number of parameters. Throws: UsageError for anything else.
int64_t parse_parameter_count(const std::string& text);

}  // namespace hasten::plan
