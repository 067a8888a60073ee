// See memory_estimate.h.
#include "hasten/plan/memory_estimate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/plan/memory_size.h"

namespace hasten::plan {
namespace {

constexpr std::array<const char*, 4> kHeaders{"dtype", "Largest Layer", "Total Size", "Training using Adam"};
constexpr std::string_view kLine = "─";

double divisor_of(const std::string& dtype) {
  if (dtype == "float32") return 1;
  if (dtype == "float16" || dtype == "bfloat16") return 2;
  if (dtype == "int8") return 4;
  if (dtype == "int4") return 8;
  throw UsageError(Origin{"plan"}, "'", dtype, "' is no dtype of an estimate",
                   guess_end(dtype, {"float32", "float16", "bfloat16", "int8", "int4"}),
                   " Expected float32, float16, bfloat16, int8 or int4.");
}

std::string bytes_text(double bytes, double divisor) {
  if (divisor == 1 && bytes == std::floor(bytes)) return convert_bytes(static_cast<int64_t>(bytes));
  return convert_bytes(bytes / divisor);
}

std::string repeated(std::string_view part, size_t count) {
  std::string result;
  for (size_t i = 0; i < count; ++i) result += part;
  return result;
}

// As Python's str.center pads.
std::string centered(const std::string& text, size_t width) {
  if (text.size() >= width) return text;
  const size_t pad = width - text.size();
  const size_t left = pad / 2 + (pad & width & 1);
  return std::string(left, ' ') + text + std::string(pad - left, ' ');
}

std::string rule(const std::vector<size_t>& widths, const char* left, const char* middle, const char* right) {
  std::string line = left;
  for (size_t i = 0; i < widths.size(); ++i) {
    if (i > 0) line += middle;
    line += repeated(kLine, widths[i]);
  }
  return line + right;
}

std::string row(const std::vector<size_t>& widths, const std::array<std::string, 4>& cells) {
  std::string line = "│";
  for (size_t i = 0; i < widths.size(); ++i) line += centered(cells[i], widths[i]) + "│";
  return line;
}

}  // namespace

int64_t TrainingUsage::largest() const noexcept {
  return std::max({model, optimizer, gradients, step});
}

TrainingUsage estimate_training_usage(int64_t bytes, const std::string& precision) {
  const int64_t half = bytes / 2;
  if (precision == "float32") return {bytes, bytes * 2, bytes, bytes * 4};
  const bool is_low = precision == "float16" || precision == "bfloat16" || precision == "fp8";
  if (is_low) return {bytes, bytes * 2, bytes + half, bytes * 2};
  return {};
}

std::vector<EstimateRow> estimate_rows(const MaximumSizes& sizes, const std::vector<std::string>& dtypes) {
  std::vector<EstimateRow> rows;
  for (const std::string& dtype : dtypes) {
    const double divisor = divisor_of(dtype);
    const int64_t training = estimate_training_usage(static_cast<int64_t>(sizes.total), dtype).largest();
    rows.push_back({dtype, bytes_text(sizes.largest.bytes, divisor), bytes_text(sizes.total, divisor),
                    training < 0 ? "N/A" : convert_bytes(training)});
  }
  return rows;
}

std::string estimate_table(const std::vector<EstimateRow>& rows, const std::string& model_name) {
  std::vector<std::array<std::string, 4>> cells{{kHeaders[0], kHeaders[1], kHeaders[2], kHeaders[3]}};
  for (const EstimateRow& item : rows) cells.push_back({item.dtype, item.largest_layer, item.total, item.training});
  std::vector<size_t> widths(kHeaders.size(), 0);
  for (const auto& line : cells) {
    for (size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  const std::string title = "Memory Usage for loading `" + model_name + "`";
  const size_t cell_sum = std::accumulate(widths.begin(), widths.end(), size_t{0});
  const size_t line_length = cell_sum + widths.size() + 1;
  // A long name widens the last column by twice what is missing, as in the peer's table.
  if (title.size() > cell_sum) {
    const size_t missing = title.size() > line_length ? title.size() - line_length : line_length - title.size();
    widths.back() += 2 * missing;
  }
  const size_t inner = std::accumulate(widths.begin(), widths.end(), widths.size() - 1);
  std::string table = rule(widths, "┌", "─", "┐") + "\n│" + centered(title, inner) + "│\n" +
                      rule(widths, "├", "┬", "┤") + "\n" + row(widths, cells[0]) + "\n" + rule(widths, "├", "┼", "┤") +
                      "\n";
  for (size_t i = 1; i < cells.size(); ++i) table += row(widths, cells[i]) + "\n";
  return table + rule(widths, "└", "┴", "┘");
}

}  // namespace hasten::plan
