// See accelerator/parallel_report.h.
#include "hasten/accelerator/parallel_report.h"

#include <algorithm>
#include <utility>

#include "hasten/core/count_text.h"
#include "hasten/core/number.h"
#include "hasten/core/text.h"

namespace hasten {
namespace {

std::string padded(std::string words, size_t width) {
  if (words.size() < width) words.append(width - words.size(), ' ');
  return words;
}

std::string bytes_text(int64_t bytes) {
  const auto number = static_cast<double>(bytes);
  if (bytes >= 1000000) return core::general_text(number / 1e6, 4) + " MB";
  if (bytes >= 1000) return core::general_text(number / 1e3, 4) + " KB";
  return count_text(bytes, "byte");
}

std::string sizes_text(const std::vector<int64_t>& sizes) {
  return text('[', join(sizes, ", "), ']');
}

std::string kinds_text(const parallel::ParallelCounts& counts) {
  std::vector<std::string> words;
  for (const auto& [kind, count] : counts.kinds)
    words.push_back(text(kind, ' ', count.calls, " (", bytes_text(count.bytes), ')'));
  return words.empty() ? "none" : join(words, ", ");
}

}  // namespace

std::string ParallelReport::text() const {
  using hasten::text;
  std::string words = text("layout ", plan::layout_text(sizes), "; this is ", coordinate, '\n');
  size_t name_width = 6, parameter_width = 9;
  for (const auto& module : modules) {
    name_width = std::max(name_width, module.name.size() + module.type.size() + 3);
    for (const auto& one : module.parameters)
      parameter_width = std::max(parameter_width, one.name.size() + sizes_text(one.sizes).size() + 1);
  }
  if (!modules.empty())
    words += text("  ", padded("module", name_width), "  stage  ", padded("parameter", parameter_width), "  here\n");
  for (const auto& module : modules) {
    std::string head = text(module.name, " (", module.type, ')');
    std::string stage = module.stage ? text(*module.stage) : std::string("-");
    for (const auto& one : module.parameters) {
      const std::string here = !one.is_here      ? std::string("on another stage")
                               : one.cut.empty() ? std::string("whole")
                                                 : text(sizes_text(one.own_sizes), ", cut on ", one.cut);
      words += text("  ", padded(std::exchange(head, ""), name_width), "  ", padded(std::exchange(stage, ""), 5), "  ",
                    padded(text(one.name, ' ', sizes_text(one.sizes)), parameter_width), "  ", here, '\n');
    }
  }
  if (exchanges.empty() && modules.empty()) return words + "  no model was prepared yet\n";
  if (exchanges.empty()) return words + "  nothing is exchanged: no model and no sequence is divided\n";
  words += num_steps == 0 ? std::string("  exchanges so far, without a step:\n")
                          : text("  exchanges of the last of ", count_text(num_steps, "step"), ":\n");
  for (const auto& one : exchanges) {
    const auto& counts = num_steps == 0 ? one.all : one.last_step;
    words += text("    ", one.axis, " (", count_text(one.ranks, "rank"), "): ", kinds_text(counts), '\n');
  }
  for (const auto& one : exchanges) {
    for (const auto& [name, number] : one.all.gathered)
      words += text("  ", name, " has no rule over ", one.axis, ", and ran on whole values ",
                    count_text(number, "time"), '\n');
  }
  return words;
}

}  // namespace hasten
