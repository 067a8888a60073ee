// See tensor_plan.h.
#include "hasten/parallel/tensor/tensor_plan.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <set>

#include "hasten/core/digit.h"
#include "hasten/core/error.h"
#include "hasten/core/listing.h"

namespace hasten::parallel {
namespace {

// The whole of `name`.
bool matches_all(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern.starts_with("**")) {
    for (size_t i = 0; i <= name.size(); ++i) {
      if (matches_all(pattern.substr(2), name.substr(i))) return true;
    }
    return false;
  }
  if (pattern.front() == '*') {
    size_t digits = 0;
    while (digits < name.size() && core::is_digit(name[digits])) ++digits;
    if (digits > 0 && matches_all(pattern.substr(1), name.substr(digits))) return true;
    // A star at the head of a name stands for any modules before it.
    if (!pattern.starts_with("*.")) return false;
    std::string any(1, '*');
    any += pattern;
    return matches_all(any, name);
  }
  return !name.empty() && name.front() == pattern.front() && matches_all(pattern.substr(1), name.substr(1));
}

struct Style {
  enum class Kind { kColumns, kRows, kWhole } kind = Kind::kWhole;
  /// The table of an embedding, whatever the module is.
  bool of_embedding = false;
  bool packed = false;
  /// 0: to be found by the name.
  int64_t blocks = 1;
};

const std::vector<std::string>& style_names() {
  static const std::vector<std::string> names = {
      "colwise",           "rowwise",           "colwise_gather_output",
      "colwise_rep",       "rowwise_rep",       "rowwise_split_input",
      "packed_colwise",    "packed_rowwise",    "embedding_rowwise",
      "embedding_colwise", "sequence_parallel", "replicated_with_grad_allreduce",
      "replicate",         "all_reduce"};
  return names;
}

// The style, or what is wrong with it.
std::optional<Style> parse_style(const std::string& text, std::string& error) {
  const size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  if (name.starts_with("ep_") || name.starts_with("moe_") || name.find("expert") != std::string::npos) {
    error = "style '" + text + "': experts are not supported";
    return std::nullopt;
  }
  const auto& known = style_names();
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    error = "style '" + text + "' is unknown (there are " + join(known) + ")" + did_you_mean(name, known);
    return std::nullopt;
  }
  Style style;
  style.packed = name.starts_with("packed_");
  style.of_embedding = name.starts_with("embedding_");
  if (name.find("colwise") != std::string::npos) style.kind = Style::Kind::kColumns;
  if (name.find("rowwise") != std::string::npos) style.kind = Style::Kind::kRows;
  if (style.packed) style.blocks = 0;
  if (colon == std::string::npos) return style;
  const std::string number = text.substr(colon + 1);
  const auto [end, status] = std::from_chars(number.data(), number.data() + number.size(), style.blocks);
  if (!style.packed || status != std::errc() || end != number.data() + number.size() || style.blocks < 1) {
    error = "style '" + text + "': expected packed_colwise:N or packed_rowwise:N, with N blocks";
    return std::nullopt;
  }
  return style;
}

int64_t usual_blocks(std::string_view name) {
  constexpr std::array kTriples = std::to_array<std::string_view>({"in_proj", "c_attn", "qkv"});
  const auto in_name = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  if (std::any_of(kTriples.begin(), kTriples.end(), in_name)) return 3;
  return in_name("gate_up") ? 2 : 0;
}

// The name that a plan uses for a parameter's module: without ".weight", or without "_weight" of attention's own.
std::string_view module_name(std::string_view parameter) {
  for (const std::string_view end : {".weight", ".bias", "_weight", "_bias"}) {
    if (parameter.ends_with(end)) return parameter.substr(0, parameter.size() - end.size());
  }
  return parameter.substr(0, parameter.rfind('.'));
}

std::optional<Cut> cut_of(const Style& style, const PlanParameter& parameter) {
  const bool is_vector = parameter.sizes.size() < 2;
  const bool table = style.of_embedding || parameter.is_embedding;
  Cut cut{0, style.blocks};
  switch (style.kind) {
    case Style::Kind::kWhole:
      return std::nullopt;
    case Style::Kind::kColumns:
      // The outputs of a table are its columns.
      cut.dim = table && !is_vector ? 1 : 0;
      return cut;
    case Style::Kind::kRows:
      if (is_vector) return std::nullopt;
      cut.dim = table ? 0 : 1;
      return cut;
  }
  return std::nullopt;
}

class Resolver {
 public:
  Resolver(const std::vector<PlanParameter>& parameters, int num_parts)
      : parameters_(parameters), num_parts_(num_parts) {}

  void add(const std::string& pattern, const std::string& style_text) {
    std::string error;
    auto style = parse_style(style_text, error);
    if (!style) return note("'" + pattern + "': " + error);
    if (style->packed && style->blocks == 0) style->blocks = usual_blocks(pattern);
    if (style->blocks == 0) return note("'" + pattern + "': how many blocks? Write " + style_text + ":N");
    bool any = false;
    for (const auto& parameter : parameters_) {
      if (!plan_name_matches(pattern, module_name(parameter.name)) && !plan_name_matches(pattern, parameter.name))
        continue;
      any = true;
      put(pattern, *style, parameter);
    }
    if (!any) {
      note("'" + pattern + "' matches no module (there are " + core::listing(names()) + ")" +
           did_you_mean(pattern, names()));
    }
  }

  std::map<std::string, Cut> finish() const {
    if (!errors_.empty()) {
      const std::string problems = join(errors_, "; ");
      throw UsageError(Origin{"tensor"}, "the tensor parallel plan does not fit: ", problems,
                       problems.ends_with("?") ? "" : ".");
    }
    std::map<std::string, Cut> cuts;
    for (const auto& [identity, found] : found_) {
      if (found.cut) cuts.emplace(found.name, *found.cut);
    }
    return cuts;
  }

 private:
  struct Found {
    std::string name, pattern;
    std::optional<Cut> cut;
  };

  void note(std::string error) { errors_.push_back(std::move(error)); }

  std::vector<std::string> names() const {
    std::set<std::string> all;
    for (const auto& parameter : parameters_) all.emplace(module_name(parameter.name));
    return {all.begin(), all.end()};
  }

  void put(const std::string& pattern, const Style& style, const PlanParameter& parameter) {
    const auto cut = cut_of(style, parameter);
    if (cut && cut->dim >= static_cast<int64_t>(parameter.sizes.size())) {
      return note("'" + pattern + "': '" + parameter.name + "' has no dimension " + std::to_string(cut->dim));
    }
    if (cut && cut->blocks > 1 &&
        !divides_evenly(parameter.sizes[static_cast<size_t>(cut->dim)], cut->blocks, num_parts_)) {
      return note("'" + parameter.name + "': " + std::to_string(parameter.sizes[static_cast<size_t>(cut->dim)]) +
                  " in " + std::to_string(cut->blocks) + " blocks is not divided by tp " + std::to_string(num_parts_));
    }
    const void* const key = parameter.identity != nullptr ? parameter.identity : &parameter;
    const auto [at, is_new] = found_.try_emplace(key, Found{parameter.name, pattern, cut});
    if (is_new || at->second.cut == cut) return;
    const std::string tied = at->second.name == parameter.name ? "" : " (the same tensor as '" + at->second.name + "')";
    const auto words = [](const std::optional<Cut>& of) { return describe(of.value_or(Cut{})); };
    note("'" + parameter.name + "'" + tied + " is " + words(at->second.cut) + " by '" + at->second.pattern + "' and " +
         words(cut) + " by '" + pattern + "'");
  }

  const std::vector<PlanParameter>& parameters_;
  int num_parts_;
  std::vector<std::string> errors_;
  std::map<const void*, Found> found_;
};

}  // namespace

bool plan_name_matches(std::string_view pattern, std::string_view name) {
  if (matches_all(pattern, name)) return true;
  for (size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.', dot + 1)) {
    if (matches_all(pattern, name.substr(dot + 1))) return true;
  }
  return false;
}

std::vector<std::string> matching_modules(std::string_view pattern, const std::vector<std::string>& modules) {
  std::vector<std::string> found;
  for (const auto& module : modules) {
    if (plan_name_matches(pattern, module)) found.push_back(module);
  }
  return found;
}

std::map<std::string, Cut> resolve_plan(const TensorPlan& plan, const std::vector<PlanParameter>& parameters,
                                        int num_parts) {
  Resolver resolver(parameters, num_parts);
  for (const auto& [pattern, style] : plan) resolver.add(pattern, style);
  return resolver.finish();
}

}  // namespace hasten::parallel
