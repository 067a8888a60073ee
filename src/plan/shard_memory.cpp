// See shard_memory.h.
#include "hasten/plan/shard_memory.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/core/number.h"
#include "hasten/core/text.h"

namespace hasten::plan {
namespace {

void check(const ShardMemoryInput& input) {
  const Origin origin{"plan"};
  const auto require = [&](bool good, const char* name, int64_t value, const char* expected) {
    if (!good) throw UsageError(origin, name, " is ", value, "; expected ", expected, ".");
  };
  require(input.parameters >= 1, "parameters", input.parameters, "at least 1");
  require(input.largest_unit >= 1, "largest_unit", input.largest_unit, "at least 1");
  require(input.ranks_per_host >= 1, "ranks_per_host", input.ranks_per_host, "at least 1");
  require(input.hosts >= 1, "hosts", input.hosts, "at least 1");
  require(input.compute_bytes == 2 || input.compute_bytes == 4, "compute_bytes", input.compute_bytes, "2 or 4");
  require(input.optimizer_bytes >= 0, "optimizer_bytes", input.optimizer_bytes, "0 or more");
}

std::string size_text(int64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit < 5; ++unit) value /= 1024;
  return core::fixed_text(value, unit == 0 ? 0 : 2) + " " + units[unit];
}

std::string padded(const std::string& word, size_t width, bool left = false) {
  const std::string blanks(word.size() < width ? width - word.size() : 0, ' ');
  return left ? word + blanks : blanks + word;
}

// Bytes on a device, by row. Parameters and gradients are float32, units in the compute dtype.
std::vector<int64_t> on_devices(const ShardMemoryInput& input) {
  const int64_t p = input.parameters, world = int64_t{input.ranks_per_host} * input.hosts, a = input.optimizer_bytes;
  const int64_t unit = std::min(input.largest_unit, p), casts = input.compute_bytes < 4 ? p * input.compute_bytes : 0;
  // Stripes that are stepped on the CPU come in the dtype of computing.
  const int64_t rests = input.compute_bytes;
  const auto part = [&](int64_t bytes) { return (bytes + world - 1) / world; };
  const auto under_way = [&](int stage) {
    return static_cast<int64_t>(std::ceil(bytes_under_way({.stage = stage,
                                                           .unit = static_cast<double>(unit),
                                                           .ranks = static_cast<double>(world),
                                                           .compute_bytes = input.compute_bytes})));
  };
  return {
      casts + p * (4 + 4 + a),          p * 8 + part(p * a) + under_way(1), p * 4 + part(p * (4 + a)) + under_way(2),
      part(p * (8 + a)) + under_way(3), part(p * rests) + under_way(3),     under_way(3)};
}

}  // namespace

double bytes_under_way(const UnitsUnderWay& units) {
  const double gradient = units.unit * units.gradient_bytes;
  if (units.stage == 1) return gradient;
  const double gradients = 3 * gradient + gradient / units.ranks;
  return units.stage == 2 ? gradients : gradients + 2 * units.unit * units.compute_bytes;
}

std::vector<ShardMemoryRow> shard_memory(const ShardMemoryInput& input) {
  check(input);
  const int64_t p = input.parameters, ranks = input.ranks_per_host, hosts = input.hosts, b = input.compute_bytes;
  const int64_t masters = b < 4 ? 4 : 0, state = masters + input.optimizer_bytes;
  // Two slots a rank, and the unit whose gradients autograd has made and not yet put there.
  const int64_t unit = std::min(input.largest_unit, p), slots = 3 * ranks * unit * 4;
  const auto part = [&](int64_t bytes) { return (bytes + hosts - 1) / hosts; };
  const int64_t filled = hosts > 1 ? 2 * unit * b : 0;
  std::vector<ShardMemoryRow> rows = {
      {"ddp (nothing split)", ranks * p * b, ranks * p * 4, ranks * p * state},
      {"stage 1 (optimizer state)", p * b, ranks * p * 4, part(p * state)},
      {"stage 2 (and gradients)", p * b, part(p * 4) + slots, part(p * state)},
      {"stage 3 (and parameters)", part(p * b) + filled, part(p * 4) + slots, part(p * state)}};
  // Three tiles of state are in memory at a time; 2^20 elements each.
  const int64_t tiles = std::min(part(p * state), ranks * 3 * (int64_t{1} << 20) * state);
  rows.push_back({"stage 3, optimizer state in files", rows[3].parameters, rows[3].gradients, tiles, part(p * state)});
  const int64_t live = std::min(part(p * b), 2 * unit * b);
  rows.push_back(
      {"stage 3, parameters in files as well", live, rows[3].gradients, tiles, part(p * state) + part(p * b)});
  const auto devices = on_devices(input);
  for (size_t i = 0; i < rows.size(); ++i) rows[i].on_device = devices[i];
  return rows;
}

const ShardMemoryRow* cheapest_that_fits(const std::vector<ShardMemoryRow>& rows, int64_t bytes) {
  const auto found =
      std::find_if(rows.begin(), rows.end(), [&](const ShardMemoryRow& row) { return row.total() <= bytes; });
  return found == rows.end() ? nullptr : &*found;
}

std::string describe(const ShardMemoryInput& input, const std::vector<ShardMemoryRow>& rows,
                     std::optional<int64_t> limit) {
  std::string out = text(
      count_text(input.parameters, "parameter"), " on ", input.hosts, input.hosts == 1 ? " host with " : " hosts with ",
      input.ranks_per_host, input.ranks_per_host == 1 ? " rank" : " ranks each", ", ",
      input.compute_bytes == 4 ? "float32" : "two-byte", " compute, ", count_text(input.optimizer_bytes, "byte"),
      " of optimizer state a parameter.\nBytes on each host, and on each device if every rank has one, "
      "without activations:\n\n");
  const size_t first = 38, width = 13;
  out += padded("", first, true);
  for (const char* title : {"parameters", "gradients", "optimizer", "total", "on disk", "a device"})
    out += padded(title, width);
  out += "\n";
  for (const auto& row : rows) {
    out += padded(row.strategy, first, true);
    for (const int64_t bytes : {row.parameters, row.gradients, row.optimizer, row.total()})
      out += padded(size_text(bytes), width);
    out += padded(row.on_disk == 0 ? "-" : size_text(row.on_disk), width);
    out += padded(size_text(row.on_device), width) + "\n";
  }
  if (!limit) return out;
  const auto* fits = cheapest_that_fits(rows, *limit);
  out += text("\n", size_text(*limit), " a host: ",
              fits == nullptr ? "none of these fits; use more hosts, or a smaller unit"
                              : "the first that fits is " + fits->strategy,
              ".\n");
  return out;
}

int64_t parse_parameter_count(const std::string& given) {
  std::string number = given;
  double factor = 1;
  const std::string suffixes = "kKmMbBgGtT";
  if (!number.empty() && suffixes.find(number.back()) != std::string::npos) {
    const char unit = static_cast<char>(std::tolower(static_cast<unsigned char>(number.back())));
    factor = unit == 'k' ? 1e3 : unit == 'm' ? 1e6 : unit == 't' ? 1e12 : 1e9;
    number.pop_back();
  }
  double value = 0;
  const auto got = std::from_chars(number.data(), number.data() + number.size(), value);
  const bool whole = got.ec == std::errc() && got.ptr == number.data() + number.size() && !number.empty();
  if (!whole || !(value * factor >= 1) || value * factor > 1e18) {
    throw UsageError(Origin{"plan"}, "'", given,
                     "' is no number of parameters; expected one such as 124M, 1.3B or 7e9, or a safetensors file.");
  }
  return static_cast<int64_t>(std::llround(value * factor));
}

}  // namespace hasten::plan
